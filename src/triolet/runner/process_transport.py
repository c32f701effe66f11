"""A worker in a process of its own: it can be killed, and it does not share our GIL.

Frames (see `wire.py`) travel over a socket pair. The child's standard input is its lifeline:
it ends when that is closed, which the kernel does even if we are killed. Its standard error
goes into our log, line by line.
"""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

import trio

from triolet.actor.supervisor import bounded_shield, open_service_nursery
from triolet.errors import ConfigError
from triolet.messages.runner_to_scheduler import BatchResult, RunnerInfo
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.runner import wire
from triolet.runner.transport import Worker, WorkerDied
from triolet.runner.worker import MODEL_RUNNER, WorkerSpec

log = logging.getLogger(__name__)

END_TIMEOUT_S = 2.0
"""How long an idle worker may take to end when asked; then it is killed."""

STDERR_LINES_KEPT = 20
"""Last lines of a dead worker's standard error, kept for the reason of its death."""

RECEIVE_BYTES = 1 << 16


class WorkerProcess:
    """A child process that nobody drives yet.

    It imports meanwhile what it will need, which takes torch longer than anything but loading.

    Attributes:
        process: The child.
        connection: Our end of the socket pair, not blocking.
        stream: The same, as a stream.
        is_set_up: Whether it was told what to build.
    """

    def __init__(self, process: trio.Process, connection: socket.socket) -> None:
        self.process = process
        self.connection = connection
        self.stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
        self.is_set_up = False
        self._taken = False

    @classmethod
    async def start(cls, backend: str) -> WorkerProcess:
        """Start a child. A checkpoint.

        Args:
            backend: Import path of the backend that it is going to build, see `WorkerSpec`.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = await trio.lowlevel.open_process(
                [
                    sys.executable,
                    "-m",
                    "triolet.runner.worker_process",
                    str(theirs.fileno()),
                    backend.partition(":")[0],
                ],
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C in the terminal is for us alone
            )
        ours.setblocking(False)
        return cls(process, ours)

    async def set_up(self, spec: WorkerSpec) -> None:
        """Let it build its backend before anybody takes it. A checkpoint.

        A child that has died is no error here: whoever takes it finds out.
        """
        self.is_set_up = True
        with suppress(trio.BrokenResourceError):
            await self.stream.send_all(wire.encode(wire.Setup(spec, None)))

    def take(self) -> bool:
        """Own it from now on, and end it; False if somebody does already."""
        taken, self._taken = self._taken, True
        return not taken

    async def discard(self) -> None:
        """End a child that nobody has taken: it has nothing to finish. Call under a shield."""
        if self.take():
            self.process.kill()
            await self.process.wait()
            for pipe in (self.process.stdin, self.process.stderr, self.stream):
                assert pipe is not None
                await trio.aclose_forcefully(pipe)


@asynccontextmanager
async def early_process(backend: str = MODEL_RUNNER) -> AsyncGenerator[WorkerProcess]:
    """A child for the first worker, while the model is still being looked for.

    Leaving the block ends it, unless a transport has taken it over.
    """
    child = await WorkerProcess.start(backend)
    try:
        yield child
    finally:
        with bounded_shield(END_TIMEOUT_S, "no child may outlive its owner"):
            await child.discard()


class ProcessTransport:
    """Opens workers as child processes.

    Args:
        spec: What the worker builds; its options must be plain data.
        early: A child for the first worker, if one was started.
    """

    def __init__(self, spec: WorkerSpec, early: WorkerProcess | None = None) -> None:
        self._spec = spec
        self._early = early

    @asynccontextmanager
    async def open(
        self, progress: Callable[[str], None], num_blocks: int | None
    ) -> AsyncGenerator[Worker]:
        """See `Transport.open`."""
        child, self._early = self._early, None
        if child is None or not child.take():
            child = await WorkerProcess.start(self._spec.backend)
        worker = _ProcessWorker(child, progress)
        async with open_service_nursery() as nursery:
            nursery.start_soon(worker.log_stderr)
            try:
                if not child.is_set_up:
                    await worker.send(wire.Setup(self._spec, num_blocks))
                yield worker
            finally:
                with bounded_shield(2 * END_TIMEOUT_S, "no child may outlive its owner"):
                    await worker.end()
                nursery.cancel_scope.cancel()


class _ProcessWorker:
    """`Worker` over frames."""

    def __init__(self, child: WorkerProcess, progress: Callable[[str], None]) -> None:
        self._process = child.process
        self._connection = child.connection
        self._stream = child.stream
        self._report_progress = progress
        self._reader = wire.FrameReader()
        self._last_lines: deque[str] = deque(maxlen=STDERR_LINES_KEPT)
        self._stderr_ended = trio.Event()

    @property
    def pid(self) -> int:
        """Of the child, for tests and statistics."""
        return self._process.pid

    async def wait_ready(self) -> RunnerInfo:
        """See `Worker`."""
        frame = await self._next()
        if isinstance(frame, RunnerInfo):
            return frame
        raise WorkerDied(f"unexpected {type(frame).__name__} while loading", "corrupt")

    async def submit(self, batch: ScheduledBatch) -> None:
        """See `Worker`."""
        await self.send(batch)

    async def next_result(self) -> BatchResult:
        """See `Worker`."""
        frame = await self._next()
        if isinstance(frame, BatchResult):
            return frame
        raise WorkerDied(f"unexpected {type(frame).__name__} instead of a result", "corrupt")

    async def send(self, frame: wire.Frame) -> None:
        """Send a frame whole.

        Raises:
            WorkerDied: The pipe is broken.
        """
        try:
            await self._stream.send_all(wire.encode(frame))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise await self._death() from None

    async def _next(self) -> wire.Frame:
        while True:
            try:
                frame = self._reader.next()
            except wire.GarbledFrame as error:
                raise WorkerDied(f"the worker sent garbage: {error}", "corrupt") from error
            match frame:
                case None:
                    await self._receive()
                case wire.LoadProgress(text):
                    self._report_progress(text)
                case wire.Failure(message, True, param):
                    raise ConfigError(message, param=param)
                case wire.Failure(message):
                    raise WorkerDied(message)
                case _:
                    return frame

    async def _receive(self) -> None:
        # The stream would try to read before it waits, but a step is never done so soon.
        await trio.lowlevel.wait_readable(self._connection)
        try:
            data = self._connection.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return  # woken for nothing
        except OSError:
            data = b""
        if not data:
            raise await self._death()
        self._reader.feed(data)

    async def _death(self) -> WorkerDied:
        """Why the worker is gone. Waits (bounded) for its exit status and last words."""
        with trio.move_on_after(END_TIMEOUT_S):
            await self._process.wait()
            await self._stderr_ended.wait()
        code = self._process.returncode
        words = self._last_lines[-1] if self._last_lines else "no message"
        if code is None:
            return WorkerDied("the worker closed its pipe")
        if code < 0:
            return WorkerDied(f"the worker was killed by {signal.Signals(-code).name}", "killed")
        return WorkerDied(f"the worker ended with status {code}: {words}")

    async def log_stderr(self) -> None:
        """Copy the child's standard error into our log until it ends."""
        assert self._process.stderr is not None
        rest = b""
        async for data in self._process.stderr:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._log_line(line)
        if rest:
            self._log_line(rest)
        self._stderr_ended.set()

    def _log_line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._last_lines.append(text)
            log.info("worker %d: %s", self._process.pid, text)

    async def end(self) -> None:
        """Ask, wait, then force; each step bounded. Call under a shield."""
        if self._process.returncode is None:
            with trio.move_on_after(END_TIMEOUT_S):
                try:
                    await self.send(wire.End())
                    await self._process.wait()
                except WorkerDied:
                    pass  # it is gone already
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        assert self._process.stdin is not None
        await trio.aclose_forcefully(self._process.stdin)
        await trio.aclose_forcefully(self._stream)
