"""`python -m triolet.runner.worker_process FD MODULE`: the worker process. No trio in here.

The main thread computes. A reader thread takes frames from the socket FD; another waits for
the end of standard input, the lifeline, and then ends the process at once, whatever it does.
"""

from __future__ import annotations

import importlib
import os
import queue
import select
import signal
import socket
import sys
import threading
import traceback

from triolet.errors import ConfigError
from triolet.messages.runner_to_scheduler import BatchResult, RunnerInfo
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.runner import wire
from triolet.runner.worker import work

RECEIVE_BYTES = 1 << 16
EXIT_ORPHANED = 3
PARENT_CHECK_S = 0.5


class _SocketOutlet:
    """`worker.Outlet` over frames."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def progress(self, text: str) -> None:
        self._send(wire.LoadProgress(text))

    def ready(self, info: RunnerInfo) -> None:
        self._send(info)

    def result(self, result: BatchResult) -> None:
        self._send(result)

    def failed(self, error: Exception) -> None:
        if not isinstance(error, ConfigError):  # which says all there is to say in a sentence
            traceback.print_exception(error)
        self._send(wire.failure_of(error))

    def end(self) -> None:
        self._connection.close()

    def _send(self, frame: wire.Frame) -> None:
        self._connection.sendall(wire.encode(frame))


def main() -> None:
    """Serve one engine until it says End or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_watch_lifeline, args=(os.getppid(),), daemon=True).start()
    frames = _frames(connection)
    # The engine may still be looking for its model; what fails here says so in the log, and
    # the end of this process is that of the worker.
    importlib.import_module(sys.argv[2])
    setup = frames.get()
    if not isinstance(setup, wire.Setup):
        sys.exit("the first frame must be a Setup")

    def take(wait: bool) -> ScheduledBatch | None:
        frame = frames.get() if wait else frames.get_nowait()
        return frame if isinstance(frame, ScheduledBatch) else None

    work(setup.spec.build, setup.num_blocks, take, _SocketOutlet(connection))
    sys.stderr.flush()
    # Not sys.exit: nothing that a library left running may keep this process alive.
    os._exit(0)


def _watch_lifeline(parent: int) -> None:
    """End this process when its parent is gone.

    The end of standard input says so at once. A process that the parent has forked may hold
    the other end open, so who our parent is is looked at too.
    """
    descriptor = sys.stdin.fileno()
    while os.getppid() == parent:
        readable, _, _ = select.select([descriptor], [], [], PARENT_CHECK_S)
        if readable and not os.read(descriptor, 4096):
            break
    os._exit(EXIT_ORPHANED)


def _frames(connection: socket.socket) -> queue.SimpleQueue[wire.Frame | None]:
    """Read frames in a thread; None when there will be no more."""
    frames: queue.SimpleQueue[wire.Frame | None] = queue.SimpleQueue()

    def read() -> None:
        reader = wire.FrameReader()
        try:
            while data := connection.recv(RECEIVE_BYTES):
                reader.feed(data)
                while (frame := reader.next()) is not None:
                    frames.put(frame)
        except wire.GarbledFrame:
            traceback.print_exc()
        except OSError:
            pass  # the main thread has closed the socket: it is done
        frames.put(None)

    threading.Thread(target=read, daemon=True).start()
    return frames


if __name__ == "__main__":
    main()
