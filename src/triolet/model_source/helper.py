"""Work in a process of its own: killable, with its own memory, and torch only there.

The parent writes one JSON line to the child's stdin and keeps the pipe open as a lifeline: a
child whose stdin ends has lost its parent and exits. The child answers on stdout with JSON
lines: any number of `{"progress": text}`, then one `{"result": ...}` or `{"error": text}`.
What libraries print goes to stderr, of which the parent keeps the tail for the message.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, cast

from triolet.errors import ConfigError, InternalError
from triolet.model_source.progress import HEARTBEAT_S, Progress

Report = Callable[[str], None]
"""Sends one progress text from the child to the parent."""

Work = Callable[[Mapping[str, Any], Report], Mapping[str, Any]]
"""What a child does: from a request, to a result."""

LINE_BYTES_MAX = 1 << 20
"""A message of a child is a few hundred bytes; more means that stdout is not ours."""


def run_helper(module: str, request: Mapping[str, Any], progress: Progress) -> Mapping[str, Any]:
    """Run `python -m module` on a request and wait for its result.

    Blocks. `progress` is called with each text of the child and every `HEARTBEAT_S`; if it
    raises, the child is killed and the exception goes on.

    Raises:
        ConfigError: The child refused the request (the message is the child's), or was
            killed for lack of memory.
        InternalError: The child died without an answer.
    """
    with tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen(  # noqa: S603 - our own interpreter and our own module
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
            for message in _messages(child.stdout, progress):
                if "error" in message:
                    raise ConfigError(message["error"], param="model")
                if "result" in message:
                    return cast("Mapping[str, Any]", message["result"])
            code = child.wait()
        except BrokenPipeError:
            code = child.wait()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            child.stdin.close()
            child.stdout.close()
        if code == -signal.SIGKILL:
            raise ConfigError(
                f"{module} was killed by the system, most likely for lack of memory; "
                "free some, or take a smaller model",
                param="model",
            )
        raise InternalError(
            f"{module} ended with exit code {code} and no answer: {_tail(stderr) or 'no message'}"
        )


def _messages(stdout: IO[bytes], progress: Progress) -> Iterator[dict[str, Any]]:
    """The child's messages as they come; progress is reported here."""
    text, buffer = "starting", b""
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while True:
            progress(text)
            if not selector.select(HEARTBEAT_S):
                continue
            chunk = os.read(stdout.fileno(), 65536)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            assert len(buffer) < LINE_BYTES_MAX, "a helper wrote something else to stdout"
            for line in lines:
                message = json.loads(line)
                if "progress" in message:
                    text = message["progress"]
                    progress(text)
                else:
                    yield message


def _tail(stderr: IO[bytes]) -> str:
    """The last line that a dead child left."""
    stderr.seek(0, os.SEEK_END)
    stderr.seek(max(0, stderr.tell() - 4096))
    lines = stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:500] if lines else ""


def helper_main(work: Work) -> None:
    """The main program of a child: read the request, work, answer, exit."""
    request = json.loads(sys.stdin.buffer.readline())
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # from here on a library that prints does not disturb the answers
    threading.Thread(target=_exit_with_parent, daemon=True).start()

    def send(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        result = work(request, lambda text: send({"progress": text}))
    except ConfigError as error:
        send({"error": error.message})
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    else:
        send({"result": result})


def _exit_with_parent() -> None:
    """Wait for the end of stdin, which is the end of the parent.

    `sys.stdin` itself would do, but a thread that holds its lock aborts the interpreter's exit.
    """
    while os.read(0, 4096):
        pass
    os._exit(1)
