"""How batches reach a worker and results come back: the seam, and the thread behind it.

A transport opens one life of a worker after the other. What it opens is used from the trio
thread only; nothing in it blocks, and every wait can be cancelled without losing a result.
`process_transport.py` is the other implementation; simulations bring a third.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import trio

from triolet.actor.supervisor import bounded_shield
from triolet.errors import RunnerStuck
from triolet.messages.runner_to_scheduler import BatchResult, RunnerInfo
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.runner.worker import WorkerSpec, work

JOIN_TIMEOUT_S = 60.0
"""How long leaving a thread transport waits for the step in progress: as long as a step may
take. A thread cannot be killed, so after it only `RunnerStuck` is left."""


class WorkerDied(Exception):
    """The worker is gone, or answered nonsense.

    Attributes:
        kind: "crash", "killed", "hang" or "corrupt".
    """

    def __init__(self, message: str, kind: str = "crash") -> None:
        super().__init__(message)
        self.kind = kind


class Worker(Protocol):
    """One life of a worker, as its owner sees it."""

    async def wait_ready(self) -> RunnerInfo:
        """Wait until the model is loaded.

        Raises:
            ConfigError: The model cannot be run with this configuration.
            WorkerDied: Loading failed otherwise.
        """
        ...

    async def submit(self, batch: ScheduledBatch) -> None:
        """Hand a batch over. Waits only for a pipe that is full.

        Raises:
            WorkerDied: There is nobody to hand it to.
        """
        ...

    async def next_result(self) -> BatchResult:
        """Wait for the next result, in order. Cancelled, nothing is lost.

        Raises:
            WorkerDied: There will be none.
        """
        ...


class Transport(Protocol):
    """Opens workers, one life after the other."""

    def open(
        self, progress: Callable[[str], None], num_blocks: int | None
    ) -> AbstractAsyncContextManager[Worker]:
        """Start a worker. Leaving the block ends it, bounded in time, whatever it does.

        Args:
            progress: Told what the loading does; called in the trio thread.
            num_blocks: Size of the KV cache, if an earlier life has fixed it.
        """
        ...


class ThreadTransport:
    """The worker is a thread of this process: no copies, but it cannot be killed.

    Args:
        spec: What the worker builds.
        join_timeout_s: How long the exit waits for a step in progress.
    """

    def __init__(self, spec: WorkerSpec, join_timeout_s: float = JOIN_TIMEOUT_S) -> None:
        self._spec = spec
        self._join_timeout_s = join_timeout_s

    @asynccontextmanager
    async def open(
        self, progress: Callable[[str], None], num_blocks: int | None
    ) -> AsyncGenerator[Worker]:
        """See `Transport.open`.

        Raises:
            RunnerStuck: On leaving: the thread did not end in time. It lives on.
        """
        worker = _ThreadWorker(progress)
        # A daemon, so that a stuck one cannot keep the interpreter from exiting.
        thread = threading.Thread(
            target=work,
            args=(self._spec.build, num_blocks, worker.take, worker),
            name="triolet-model-runner",
            daemon=True,
        )
        thread.start()
        try:
            yield worker
        finally:
            worker.order_end()
            with bounded_shield(self._join_timeout_s, "the step in progress uses our memory"):
                await worker.wait_ended()
            thread.join(timeout=1.0 if worker.ended else 0.0)
            if thread.is_alive():
                raise RunnerStuck(
                    f"the model runner's thread did not end within {self._join_timeout_s:g} s; "
                    "it cannot be killed: restart the process, or use runner='process'"
                )
            worker.close()


class _ThreadWorker:
    """Both faces of the worker in a thread: `Worker` to trio, `worker.Outlet` to the thread."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._report_progress = progress
        self._inbox: queue.SimpleQueue[ScheduledBatch | None] = queue.SimpleQueue()
        self._said: deque[str | RunnerInfo | BatchResult | Exception] = deque()
        self._wake_up = _WakeUp()
        self.ended = False

    # The thread's side.

    def take(self, wait: bool) -> ScheduledBatch | None:
        return self._inbox.get() if wait else self._inbox.get_nowait()

    def progress(self, text: str) -> None:
        self._say(text)

    def ready(self, info: RunnerInfo) -> None:
        self._say(info)

    def result(self, result: BatchResult) -> None:
        self._say(result)

    def failed(self, error: Exception) -> None:
        self._say(error)

    def end(self) -> None:
        self.ended = True
        self._wake_up.signal()

    def _say(self, what: str | RunnerInfo | BatchResult | Exception) -> None:
        self._said.append(what)
        self._wake_up.signal()

    # Trio's side.

    async def wait_ready(self) -> RunnerInfo:
        said = await self._next()
        if not isinstance(said, RunnerInfo):
            raise WorkerDied("a result came before the worker was ready", "corrupt")
        return said

    async def submit(self, batch: ScheduledBatch) -> None:
        self._inbox.put(batch)

    async def next_result(self) -> BatchResult:
        said = await self._next()
        if not isinstance(said, BatchResult):
            raise WorkerDied("the worker became ready twice", "corrupt")
        return said

    async def wait_ended(self) -> None:
        while not self.ended:
            await self._wake_up.wait()

    def order_end(self) -> None:
        self._inbox.put(None)

    def close(self) -> None:
        self._wake_up.close()

    async def _next(self) -> RunnerInfo | BatchResult:
        while True:
            while not self._said:
                if self.ended:
                    raise WorkerDied("the model runner's thread has ended")
                await self._wake_up.wait()
            match self._said.popleft():
                case str() as text:
                    self._report_progress(text)
                case RunnerInfo() | BatchResult() as said:
                    return said
                case error:
                    raise error


class _WakeUp:
    """Lets another thread wake a trio task: an eventfd, or a socket pair without one.

    Measured as the cheapest hand-over between two threads: 24 us a round trip on Linux.
    """

    def __init__(self) -> None:
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        if hasattr(os, "eventfd"):
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:  # macOS
            self._sockets = socket.socketpair()
            for end in self._sockets:
                end.setblocking(False)
            self._fd = self._sockets[0].fileno()

    def signal(self) -> None:
        """Wake the waiter; from any thread, any number of times."""
        try:
            if self._sockets is None:
                os.eventfd_write(self._fd, 1)
            else:
                self._sockets[1].send(b"\0")
        except BlockingIOError:
            pass  # it is awake already

    async def wait(self) -> None:
        """Wait for a signal since the last wait. Cancelled, no signal is lost."""
        await trio.lowlevel.wait_readable(self._fd)
        try:
            if self._sockets is None:
                os.eventfd_read(self._fd)
            else:
                self._sockets[0].recv(4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Give the descriptors back."""
        if self._sockets is None:
            os.close(self._fd)
        else:
            for end in self._sockets:
                end.close()
