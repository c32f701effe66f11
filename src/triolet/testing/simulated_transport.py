"""A transport without a thread or a process: the backend runs in the trio thread.

A step takes as long on the (virtual) clock as the test says, and nothing else depends on real
time, so a run is a pure function of its seed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import trio

from triolet.messages.runner_to_scheduler import BatchResult, RunnerInfo
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.runner.backend import RunnerBackend
from triolet.runner.transport import Worker, WorkerDied

StepTime = Callable[[ScheduledBatch], float]
"""Seconds that a step takes; infinity is a hang."""


def constant_step_time(seconds: float) -> StepTime:
    """Every step takes this long."""
    return lambda _: seconds


class SimulatedTransport:
    """Runs backends in the trio thread, on the trio clock.

    Args:
        build: Makes the backend of each life.
        step_time: How long a step takes.
        load_s: How long loading takes.
        alter: Called with every result; may return another (corruption) or None (lost).
    """

    def __init__(
        self,
        build: Callable[[], RunnerBackend],
        step_time: StepTime,
        load_s: float = 0.0,
        alter: Callable[[BatchResult], BatchResult | None] | None = None,
    ) -> None:
        self._build = build
        self._step_time = step_time
        self._load_s = load_s
        self._alter = alter
        self.backends: list[RunnerBackend] = []
        self._worker: _SimulatedWorker | None = None

    def kill(self, reason: str = "killed by the test") -> None:
        """Kill the worker that lives now, if one does: its next wait is its death."""
        if self._worker is not None:
            self._worker.die(reason)

    @asynccontextmanager
    async def open(
        self, progress: Callable[[str], None], num_blocks: int | None
    ) -> AsyncGenerator[Worker]:
        """See `Transport.open`."""
        backend = self._build()
        self.backends.append(backend)
        worker = _SimulatedWorker(
            backend, self._step_time, self._load_s, self._alter, progress, num_blocks
        )
        self._worker = worker
        try:
            yield worker
        finally:
            self._worker = None
            backend.close()


class _SimulatedWorker:
    """`Worker` over a backend in the same thread."""

    def __init__(
        self,
        backend: RunnerBackend,
        step_time: StepTime,
        load_s: float,
        alter: Callable[[BatchResult], BatchResult | None] | None,
        progress: Callable[[str], None],
        num_blocks: int | None,
    ) -> None:
        self._backend = backend
        self._step_time = step_time
        self._load_s = load_s
        self._alter = alter
        self._progress = progress
        self._num_blocks = num_blocks
        self._submitted: deque[float] = deque()
        self._free_at = 0.0
        self._changed = trio.Event()
        self._death: str | None = None

    def die(self, reason: str) -> None:
        self._death = reason
        self._wake()

    async def wait_ready(self) -> RunnerInfo:
        await self._sleep_until(trio.current_time() + self._load_s)
        return self._backend.load(self._progress, self._num_blocks)

    async def submit(self, batch: ScheduledBatch) -> None:
        if self._death is not None:
            raise WorkerDied(self._death, "killed")
        try:
            self._backend.launch(batch)
        except Exception as error:
            # A real worker dies when it computes, not when it is asked to.
            self.die(f"a step failed: {error!r}")
            return
        # A device executes in order: a step begins when the one before it has ended.
        self._free_at = max(self._free_at, trio.current_time()) + self._step_time(batch)
        self._submitted.append(self._free_at)
        self._wake()

    async def next_result(self) -> BatchResult:
        while True:
            while not self._submitted:
                await self._sleep_until(None)
            await self._sleep_until(self._submitted[0])
            self._submitted.popleft()
            result = self._backend.collect()
            altered = result if self._alter is None else self._alter(result)
            if altered is not None:
                return altered

    async def _sleep_until(self, time: float | None) -> None:
        """Sleep until a time, or for one change if there is none; death comes first."""
        while True:
            if self._death is not None:
                raise WorkerDied(self._death, "killed")
            changed = self._changed
            if time is None:
                await changed.wait()
                if self._death is None:
                    return
            else:
                with trio.move_on_at(time) as scope:
                    await changed.wait()
                if scope.cancelled_caught:
                    return

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
