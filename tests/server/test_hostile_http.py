"""A hostile client beside a friendly one: the first gets 4xx, the second notices nothing."""

from __future__ import annotations

import contextlib
import json

import pytest
import trio

from support.live_server import STREAM, LiveServer, RawAnswer, live_server, post, wait_until
from triolet.testing.fake_engine import Gate, Script

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CHAT = "/v1/chat/completions"
PATHS = ("/v1/completions", CHAT, "/v1/messages", "/v1/responses", "/tokenize", "/detokenize")

BODIES: dict[str, bytes] = {
    "nothing": b"",
    "white space": b" \r\n\t",
    "no JSON": b"prompt=hi",
    "half an object": b'{"prompt": "hi"',
    "an array": b'["prompt"]',
    "two objects": b'{"prompt": "hi"} {"prompt": "hi"}',
    "a comma too many": b'{"prompt": "hi",}',
    "a comment": b'{"prompt": "hi" /* x */}',
    "NaN": b'{"prompt": "hi", "temperature": NaN}',
    "minus infinity": b'{"prompt": "hi", "temperature": -Infinity}',
    "a number beyond a double": b'{"prompt": "hi", "temperature": 1e999}',
    "an integer beyond 64 bits": b'{"prompt": "hi", "max_tokens": 99999999999999999999999}',
    "a million digits": b'{"prompt": "hi", "seed": ' + b"7" * 1_000_000 + b"}",
    "a lone surrogate escaped": rb'{"prompt": "\ud83d"}',
    "a lone surrogate in a key": rb'{"\udc00": 1, "prompt": "hi"}',
    "a lone surrogate in bytes": b'{"prompt": "\xed\xa0\x80"}',
    "an overlong encoding": b'{"prompt": "\xc0\xaf"}',
    "Latin-1": '{"prompt": "ä"}'.encode("latin-1"),
    "UTF-16": '{"prompt": "hi"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"prompt": "hi"}',
    "a null byte outside of strings": b'{"prompt": \x00"hi"}',
    "a control character in a string": b'{"prompt": "a\nb"}',
    "a key twice": b'{"prompt": "hi", "prompt": "ho"}',
    "a key twice by an escape": rb'{"prompt": "hi", "\u0070rompt": "ho"}',
    "deep arrays": b'{"prompt": ' + b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "a million values": b'{"prompt": "hi", "stop": [' + b'"",' * 1_000_000 + b'""]}',
    "a million messages": b'{"messages": [' + b"{}," * 1_000_000 + b"{}]}",
    "a long prompt of ids": b'{"prompt": [' + b"1," * 1_000_000 + b"1]}",
    "a long text": b'{"prompt": "' + b"\\u4e2d" * 500_000 + b'"}',
}

HEADERS: dict[str, str] = {
    "no type": "Content-Type: text/plain\r\n",
    "another charset": "Content-Type: application/json; charset=utf-16\r\n",
    "compressed": "Content-Encoding: gzip\r\nContent-Type: application/json\r\n",
    "a giant header": f"X-Big: {'x' * 70_000}\r\nContent-Type: application/json\r\n",
    "many headers": "".join(f"X-{i}: {'y' * 60}\r\n" for i in range(1500)),
    "a host twice": "Host: other\r\nContent-Type: application/json\r\n",
}


def raw(path: str, body: bytes, headers: str = "Content-Type: application/json\r\n") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


async def attack(server: LiveServer, request: bytes) -> RawAnswer:
    async with await server.connect() as client:
        with trio.move_on_after(5):  # the server may answer and close before it has everything
            with contextlib.suppress(trio.BrokenResourceError):
                await client.send(request)
        return await client.answer()


def check(answer: RawAnswer, name: str) -> None:
    assert 400 <= answer.status < 500, (name, answer)
    assert len(answer.body) < 8192
    assert answer.json()["error"]["message"], name
    assert "traceback" not in answer.body.decode().lower()
    assert "/src/" not in answer.body.decode()


async def test_every_hostile_request_is_a_4xx_and_a_neighbour_gets_every_token() -> None:
    gate = Gate()
    async with live_server(Script(pieces=("a",) * 40), gate=gate) as server:
        async with await server.connect() as neighbour:
            await neighbour.send(post({**STREAM, "max_tokens": 40}))
            await wait_until(lambda: server.engine.live)
            for name, body in BODIES.items():
                gate.release()
                check(await attack(server, raw("/v1/completions", body)), name)
            for name, headers in HEADERS.items():
                answer = await attack(server, raw("/v1/completions", b'{"prompt": 1}', headers))
                check(answer, name)
            gate.release(40)
            stream = await neighbour.read_until(b"data: [DONE]\n\n")
        events = [part for part in stream.split(b"data: ") if part.startswith(b'{"id"')]
        text = "".join(
            json.loads(event.split(b"\n\n")[0])["choices"][0]["text"] for event in events
        )
        assert text == "a" * 40
        assert server.engine.requests[0].state == "finished"
        await wait_until(lambda: not server.engine.live)
        assert server.connections <= 1


@pytest.mark.parametrize("path", PATHS)
async def test_every_endpoint_refuses_what_is_no_request(path: str) -> None:
    async with live_server() as server:
        for name, body in BODIES.items():
            # Elsewhere it is a field without meaning, and JSON has integers of any size.
            is_number = name == "an integer beyond 64 bits" and path != "/v1/completions"
            if len(body) < 100_000 and not is_number:
                check(await attack(server, raw(path, body)), f"{path} {name}")
        assert server.engine.requests == []


async def test_clients_that_send_one_byte_at_a_time_do_not_keep_others_out() -> None:
    async with live_server(request_timeout_s=0.4) as server, trio.open_nursery() as nursery:

        async def drip() -> None:
            async with await server.connect() as client:
                with trio.move_on_after(2):
                    for byte in raw("/v1/completions", b'{"prompt": "hi"}'):
                        try:
                            await client.send(bytes([byte]))
                        except trio.BrokenResourceError:
                            return  # cut off, as it should be
                        await trio.sleep(0.02)

        for _ in range(20):
            nursery.start_soon(drip)
        await wait_until(lambda: server.connections == 20)
        async with await server.connect() as client:
            await client.send(post({"prompt": "hi"}))
            assert (await client.answer()).status == 200
        await wait_until(lambda: server.connections <= 1)
        nursery.cancel_scope.cancel()
