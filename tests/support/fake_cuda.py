"""A device with a queue that is a CPU: the same control flow as CUDA, and less forgiving.

A copy to the host holds nonsense until an event after it was waited for. A captured step is the
function itself, called again on the same buffers; its outputs are written into the tensors of
the first call. Waiting for the device inside of a captured step, which CUDA would refuse, is not
noticed here: numbers and that are left to a GPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from triolet.runner.cuda_device import DeviceMemory, Event, Graph


class FakeQueue:
    """See `triolet.runner.cuda_device.DeviceQueue`.

    Args:
        total_bytes: Memory of the device.
        held_bytes: Held by weights and others.
        step_bytes: What the largest step is said to need.
    """

    def __init__(
        self, total_bytes: int = 1 << 20, held_bytes: int = 1 << 18, step_bytes: int = 1 << 16
    ) -> None:
        self._memory = DeviceMemory(total=total_bytes, free=total_bytes - held_bytes)
        self._step_bytes = step_bytes
        self._copies: list[tuple[Tensor, Tensor]] = []
        self.captured = 0
        self.replays = 0
        self.waits = 0
        self.measured = 0
        self.closed = False

    def to_host(self, tensor: Tensor) -> Tensor:
        """See `DeviceQueue.to_host`."""
        if tensor.dtype.is_floating_point:
            host = torch.full_like(tensor, torch.nan)
        else:
            host = torch.full_like(tensor, -(1 << 40))
        self._copies.append((host, tensor.clone()))  # in order: what comes later is not in it
        return host

    def record(self) -> Event:
        """See `DeviceQueue.record`."""
        event = _FakeEvent(self, self._copies)
        self._copies = []
        return event

    def capture(self, function: Callable[[], tuple[Tensor, ...]]) -> Graph:
        """See `DeviceQueue.capture`."""
        self.captured += 1
        return _FakeGraph(self, function)

    def memory(self) -> DeviceMemory:
        """See `DeviceQueue.memory`."""
        return self._memory

    def measure_peak(self, function: Callable[[], object]) -> int:
        """See `DeviceQueue.measure_peak`."""
        self.measured += 1
        function()
        return self._step_bytes

    def close(self) -> None:
        """See `DeviceQueue.close`."""
        self.closed = True


class _FakeEvent:
    def __init__(self, queue: FakeQueue, copies: list[tuple[Tensor, Tensor]]) -> None:
        self._queue = queue
        self._copies = copies

    def wait(self) -> None:
        """See `Event.wait`."""
        self._queue.waits += 1
        with torch.inference_mode():  # a device does not care which mode a thread is in
            for host, source in self._copies:
                host.copy_(source)
        self._copies = []


class _FakeGraph:
    def __init__(self, queue: FakeQueue, function: Callable[[], tuple[Tensor, ...]]) -> None:
        self._queue = queue
        self._function = function
        self._outputs = tuple(output.clone() for output in function())

    def replay(self) -> tuple[Tensor, ...]:
        """See `Graph.replay`."""
        self._queue.replays += 1
        for output, new in zip(self._outputs, self._function(), strict=True):
            output.copy_(new)
        return self._outputs
