"""How long large and hostile bodies hold up everybody else: the worst gap of the run loop.

python tests/bench/bench_hostile_bodies.py [case ...]

The real HTTP server and engine on a fake model, with threads. A ticking task in the same loop
measures what a neighbour would wait. The goal is 50 ms on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Mapping

import attrs
import trio

from triolet.config import EngineConfig, ServerConfig
from triolet.engine.offload import ThreadOffload
from triolet.engine.open_engine import open_engine_from_parts
from triolet.server.app import create_app
from triolet.server.http_server import HttpServer
from triolet.server.listeners import open_listeners
from triolet.server.serve import SWITCH_INTERVAL_S
from triolet.testing.engines import fake_parts
from triolet.testing.fake_runner import FakeRunner, fake_facts
from triolet.testing.simulated_transport import SimulatedTransport, constant_step_time

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
SIZE = 5 << 20


def completion(field: bytes) -> bytes:
    return b'{"prompt":"x",%b}' % field


def array(item: bytes, size: int = SIZE) -> bytes:
    return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"


def text(piece: bytes, size: int = SIZE) -> bytes:
    return b'"' + piece * (size // len(piece)) + b'"'


def chat(content: bytes, more: bytes = b"") -> bytes:
    return b'{"messages":[{"role":"user","content":%b}]%b}' % (content, more)


CASES: Mapping[str, tuple[str, bytes]] = {
    "ids": (COMPLETIONS, b'{"prompt":%b}' % array(b"1234")),
    "small ids": (COMPLETIONS, b'{"prompt":%b}' % array(b"1")),
    "strings": (COMPLETIONS, b'{"prompt":%b}' % array(b'"abc"')),
    "newlines": (COMPLETIONS, b'{"prompt":%b}' % text(rb"\n")),
    "quotes": (CHAT, chat(text(rb"\""))),
    "unicode escapes": (COMPLETIONS, b'{"prompt":%b}' % text(rb"\u4e2d")),
    "plain text": (COMPLETIONS, b'{"prompt":%b}' % text(b"hello world ")),
    "parts": (CHAT, chat(array(b'{"type":"text","text":"x"}', 500_000))),
    "all parts": (CHAT, chat(array(b'{"type":"text","text":"x"}'))),
    "messages": (CHAT, b'{"messages":%b}' % array(b'{"role":"user","content":"x"}', 240_000)),
    "arguments": (
        CHAT,
        b'{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f",'
        b'"arguments":"{\\"a\\":%b}"}}]}]}' % array(b"1"),
    ),
    "tokenize": ("/tokenize", b'{"prompt":%b}' % text(b"hello world ")),
    "detokenize": ("/detokenize", b'{"tokens":%b}' % array(b"12", 390_000)),
    "logit_bias": (
        COMPLETIONS,
        completion(b'"logit_bias":{%b}' % b",".join(b'"%d":1' % i for i in range(60_000))),
    ),
    "stop ids": (COMPLETIONS, completion(b'"stop_token_ids":%b' % array(b"1", 250_000))),
    "schema": (
        COMPLETIONS,
        completion(b'"structured_outputs":{"json":{"enum":%b}}' % array(b"1", 200_000)),
    ),
    "documents": (CHAT, chat(b'"x"', b',"documents":[{"a":%b}]' % array(b"1", 250_000))),
    "no JSON": (COMPLETIONS, b'{"prompt":%b' % array(b"1")),
}


async def measure(port: int, name: str, gaps: list[float]) -> None:
    path, body = CASES[name]
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    gc.collect()
    await trio.sleep(0.1)
    gaps.clear()
    start = time.perf_counter()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(head)
        for at in range(0, len(body), 65536):
            await stream.send_all(memoryview(body)[at : at + 65536])
        answer = await stream.receive_some(65536)
    await trio.sleep(0.1)
    took_ms = (time.perf_counter() - start - 0.1) * 1e3
    worst = max(gaps) * 1e3
    print(
        f"{name:16} {len(body) / 1e6:5.1f} MB {answer[9:12].decode()} {took_ms:6.0f} ms"
        f"   worst gap {worst:4.0f} ms"
    )


async def main(names: list[str]) -> None:
    config, facts = EngineConfig.of("fake"), fake_facts()
    transport = SimulatedTransport(
        lambda: FakeRunner(config, facts), constant_step_time(0.001), 0.0, None
    )
    parts = attrs.evolve(fake_parts(facts, transport), offload=ThreadOffload(4))
    server = ServerConfig(port=0)
    gaps: list[float] = []

    async def tick() -> None:
        last = time.perf_counter()
        while True:
            await trio.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    async with open_engine_from_parts(config, parts) as engine, trio.open_nursery() as nursery:
        http = HttpServer(create_app(engine, server).serve_asgi, server)
        listening = await open_listeners(server)
        await nursery.start(http.run, listening.listeners)
        nursery.start_soon(tick)
        for name in names:
            await measure(int(listening.url.rpartition(":")[2]), name, gaps)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # as `triolet serve` does
    trio.run(main, parser.parse_args().cases or list(CASES))
