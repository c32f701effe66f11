"""What the runner asks of a device that works through a queue of its own, such as a GPU.

On such a device an operation only queues work. The runner must know when results are there
(`Event`), how to bring them to the host without waiting (`to_host`), and how to queue a whole
step at once (`Graph`). `CudaQueue` is the real one; tests drive the runner with another one on
the CPU, so that what is left to a GPU is numbers and not logic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import attrs
import torch
from torch import Tensor


@attrs.frozen
class DeviceMemory:
    """Bytes of a device.

    Attributes:
        total: That it has.
        free: That nobody holds, this process's own cache of free memory not counted.
    """

    total: int
    free: int


class Event(Protocol):
    """A place in the queue."""

    def wait(self) -> None:
        """Wait until everything before it is done; raises what the device raised."""
        ...


class Graph(Protocol):
    """Work that was recorded once and can be queued again as a whole."""

    def replay(self) -> tuple[Tensor, ...]:
        """Queue it again.

        Returns:
            What the recorded function returned: the same tensors every time, written anew.
        """
        ...


class DeviceQueue(Protocol):
    """One device and its queue. Everything is done in the order in which it was queued."""

    def to_host(self, tensor: Tensor) -> Tensor:
        """Queue a copy to the host; what is in it counts once a later event is past."""
        ...

    def record(self) -> Event:
        """An event after everything queued so far."""
        ...

    def capture(self, function: Callable[[], tuple[Tensor, ...]]) -> Graph:
        """Record what a function queues.

        The function is called at least once. It reads tensors that stay where they are, and
        must neither wait for the device nor depend on anything but what those tensors hold.
        """
        ...

    def memory(self) -> DeviceMemory:
        """Memory as it is now."""
        ...

    def measure_peak(self, function: Callable[[], object]) -> int:
        """Call a function; the bytes it held at most, beyond what was held before."""
        ...

    def close(self) -> None:
        """Give back what this process caches. Graphs must be gone before."""
        ...


class CudaQueue:
    """A CUDA device: its current stream, torch's caching allocators, CUDA graphs.

    Args:
        device: Which one.
    """

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cuda", device
        self._device = device
        # One pool for all graphs: they never run at the same time, and what one leaves behind
        # is read before the next is queued.
        self._pool: Any = None  # torch has no public name for its type

    def to_host(self, tensor: Tensor) -> Tensor:
        """See `DeviceQueue.to_host`. Page-locked: a copy to other memory would wait."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def record(self) -> Event:
        """See `DeviceQueue.record`."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's
        event.record(torch.cuda.current_stream(self._device))
        return _CudaEvent(event)

    def capture(self, function: Callable[[], tuple[Tensor, ...]]) -> Graph:
        """See `DeviceQueue.capture`."""
        function()  # compiles kernels and sets up cuBLAS, neither of which can be recorded
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = function()
        self._pool = graph.pool()
        return _CudaGraph(graph, outputs)

    def memory(self) -> DeviceMemory:
        """See `DeviceQueue.memory`."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return DeviceMemory(total=total, free=free)

    def measure_peak(self, function: Callable[[], object]) -> int:
        """See `DeviceQueue.measure_peak`."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        function()
        torch.cuda.synchronize(self._device)
        # Reserved, not allocated: what the allocator cannot use between tensors is gone too.
        return torch.cuda.max_memory_reserved(self._device) - before

    def close(self) -> None:
        """See `DeviceQueue.close`."""
        self._pool = None
        torch.cuda.empty_cache()


@attrs.frozen
class _CudaEvent:
    event: torch.cuda.Event

    def wait(self) -> None:
        """See `Event.wait`."""
        self.event.synchronize()


@attrs.frozen
class _CudaGraph:
    graph: torch.cuda.CUDAGraph
    outputs: tuple[Tensor, ...]

    def replay(self) -> tuple[Tensor, ...]:
        """See `Graph.replay`."""
        self.graph.replay()
        return self.outputs


def open_queue(device: torch.device) -> DeviceQueue | None:
    """The queue of a device; None for a CPU, which is done when a call returns."""
    return CudaQueue(device) if device.type == "cuda" else None
