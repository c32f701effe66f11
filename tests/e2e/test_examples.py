"""Every example runs as it stands."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from pathlib import Path
from types import ModuleType

import pytest
import trio

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_embed_in_a_service_answers_over_tcp() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    serve = load("embed_in_a_service").serve
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve, "tiny-random", 0)
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                await stream.send_all(b"hello\n" + b"x" * 100_000 + b"\n")
                reply = b""
                while reply.count(b"\n") < 2 or not reply.endswith(b"\n"):
                    reply += await stream.receive_some()
            assert b"error: " in reply
            assert b"maximum context length" in reply
            assert [
                signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
            ] == handlers
            nursery.cancel_scope.cancel()


async def test_cancel_with_a_deadline_leaves_no_blocks() -> None:
    with trio.fail_after(120):
        held = await load("cancel_with_a_deadline").main("tiny-random")
    assert held == {"deadline": 0, "scope": 0, "break": 0}


def test_embed_in_asyncio_streams_text() -> None:
    assert len(asyncio.run(load("embed_in_asyncio").main("tiny-random"))) > 0


def test_offline_answers_in_order() -> None:
    answers = load("offline").main("tiny-random")
    assert len(answers) == 2
    assert answers[0] != answers[1]
