"""Sockets: keep-alive, limits, slow and odd clients. Every answer is JSON, every wait ends."""

from __future__ import annotations

import contextlib
import json
import re
import time

import pytest
import trio

from support.live_server import STREAM, WHOLE, live_server, post, wait_until
from triolet.testing.fake_engine import Gate, Script

pytestmark = pytest.mark.e2e

GET_HEALTH = b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n"


async def test_a_connection_serves_many_requests_and_pages_between_them() -> None:
    async with live_server() as server, await server.connect() as client:
        for _ in range(3):
            await client.send(post(WHOLE))
            assert (await client.answer()).json()["choices"][0]["text"] == "Hello, world!"
            await client.send(b"GET /playground HTTP/1.1\r\nHost: t\r\n\r\n")
            page = await client.answer()
            assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
            await client.send(post(STREAM))
            await client.read_until(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert server.http.tree()["accepted"] == 1


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with live_server() as server, await server.connect() as client:
        await client.send(post(WHOLE) + GET_HEALTH + post({"prompt": "x", "n": 0}))
        assert [(await client.answer()).status for _ in range(3)] == [200, 200, 400]


@pytest.mark.parametrize("before", [b"", GET_HEALTH, post(WHOLE), post(STREAM)])
async def test_an_idle_connection_is_closed(before: bytes) -> None:
    async with live_server(keep_alive_timeout_s=0.05) as server, await server.connect() as client:
        await client.send(before)
        await client.wait_closed()
        await wait_until(lambda: server.connections == 0)


async def test_idle_connections_of_pages_are_closed_too() -> None:
    async with live_server(keep_alive_timeout_s=0.2) as server, await server.connect() as client:
        await client.send(b"GET /docs HTTP/1.1\r\nHost: t\r\n\r\n")
        assert (await client.answer()).status == 200
        await client.wait_closed()


async def test_slow_headers_are_answered_408_and_closed() -> None:
    async with live_server(request_timeout_s=0.05) as server, await server.connect() as client:
        await client.send(b"POST /v1/completions HTTP/1.1\r\nHost:")
        answer = await client.answer()
        assert (answer.status, answer.json()["error"]["code"]) == (408, "request_timeout")
        await client.wait_closed()


async def test_a_drip_of_header_bytes_does_not_extend_the_limit() -> None:
    async with live_server(request_timeout_s=0.1) as server, await server.connect() as client:
        with trio.move_on_after(5) as scope:
            try:
                while server.connections or not server.http.tree()["accepted"]:
                    await client.send(b"x")
                    await trio.sleep(0.01)
            except trio.BrokenResourceError:
                pass
        assert not scope.cancelled_caught


async def test_a_slow_body_is_answered_408_and_closed() -> None:
    async with live_server(request_timeout_s=0.05) as server, await server.connect() as client:
        await client.send(post(WHOLE)[:-2])
        answer = await client.answer()
        assert (answer.status, answer.json()["error"]["code"]) == (408, "request_timeout")
        await client.wait_closed()
        assert server.engine.requests == []


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"NONSENSE\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "invalid_http"),  # no Host
        (b"GET /health HTTP/1.1\r\nHost: t\r\nbad header\r\n\r\n", 400, "invalid_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "invalid_http"),  # TLS
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "http_version_not_supported"),
        (
            b"GET /health HTTP/1.1\r\nHost: t\r\nX: " + b"a" * 5000 + b"\r\n\r\n",
            431,
            "headers_too_large",
        ),
        (b"GET /" + b"a" * 300_000, 431, "headers_too_large"),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n\r\n",
            411,
            "length_required",
        ),
        (
            (
                b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                b"Content-Length: 99999\r\n\r\n"
            ),
            413,
            "request_too_large",
        ),
        (
            (
                b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: gzip\r\n\r\n"
            ),
            501,
            "unsupported_encoding",
        ),
        (
            (
                b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
            ),
            415,
            "unsupported_encoding",
        ),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n\r\n{}",
            415,
            "unsupported_media_type",
        ),
    ],
)
async def test_bad_requests_get_a_json_error(request_bytes: bytes, status: int, code: str) -> None:
    async with live_server(max_header_bytes=4096, max_body_bytes=1000) as server:
        async with await server.connect() as client:
            await client.send(request_bytes)
            answer = await client.answer()
            assert answer.status == status
            assert answer.json()["error"]["code"] == code
            assert answer.headers["content-type"] == "application/json"
            await client.wait_closed()
        async with await server.connect() as neighbour:
            await neighbour.send(post(WHOLE))
            assert (await neighbour.answer()).status == 200


async def test_a_large_body_is_refused_and_the_answer_survives_the_upload() -> None:
    """The client goes on sending: closing at once would reset the connection under the answer."""
    async with live_server(max_body_bytes=1000) as server, await server.connect() as client:
        head, _, _ = post({"prompt": "x" * 3_000_000}).partition(b"\r\n\r\n")

        async def upload() -> None:
            with contextlib.suppress(trio.BrokenResourceError):
                await client.send(head + b"\r\n\r\n" + b"x" * 3_000_000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(upload)
            answer = await client.answer()
            assert answer.status == 413
            await client.wait_closed()


async def test_a_large_chunked_body_is_refused_while_it_comes() -> None:
    async with live_server(max_body_bytes=1000) as server, await server.connect() as client:
        await client.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" + b"100\r\n" + b"x" * 256 + b"\r\n"
        )
        for _ in range(20):
            await client.send(b"100\r\n" + b"x" * 256 + b"\r\n")
        assert (await client.answer()).status == 413


async def test_a_chunked_body_is_read() -> None:
    body = json.dumps(WHOLE).encode()
    async with live_server() as server, await server.connect() as client:
        await client.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
            + b"".join(b"1\r\n%c\r\n" % byte for byte in body)
            + b"0\r\n\r\n"
        )
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("body", [STREAM, WHOLE])
async def test_http_1_0_is_answered_and_closed(body: dict[str, object]) -> None:
    async with live_server() as server, await server.connect() as client:
        await client.send(post(body, version="1.0"))
        got = await client.read_to_end()
        assert got.startswith(b"HTTP/1.1 200")
        assert b"transfer-encoding" not in got.lower()
        assert got.endswith(b"data: [DONE]\n\n") or body is WHOLE


@pytest.mark.parametrize("body", [STREAM, WHOLE])
async def test_connection_close_is_honoured(body: dict[str, object]) -> None:
    async with live_server() as server:
        async with await server.connect() as client:
            await client.send(post(body, more="Connection: close\r\n"))
            got = await client.read_to_end()
            assert got.startswith(b"HTTP/1.1 200")
        await wait_until(lambda: server.connections == 0)


async def test_upgrades_are_not_taken_up() -> None:
    async with live_server() as server, await server.connect() as client:
        await client.send(
            b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: Upgrade, HTTP2-Settings\r\n"
            b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        )
        assert (await client.answer()).status == 200


async def test_a_websocket_is_refused() -> None:
    async with live_server() as server, await server.connect() as client:
        await client.send(
            b"GET /v1/chat/completions HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert (await client.read_until(b"\r\n")).startswith(b"HTTP/1.1 403")
        await client.wait_closed()


async def test_more_connections_than_allowed_are_refused_and_then_served_again() -> None:
    async with live_server(max_connections=2) as server:
        async with await server.connect() as one, await server.connect() as two:
            for client in (one, two):
                await client.send(GET_HEALTH)
                assert (await client.answer()).status == 200
            async with await server.connect() as three:
                answer = await three.answer()
                assert (answer.status, answer.json()["error"]["code"]) == (
                    503,
                    "too_many_connections",
                )
                assert answer.headers["retry-after"] == "1"
                await three.wait_closed()
        await wait_until(lambda: server.connections == 0)
        async with await server.connect() as four:
            await four.send(GET_HEALTH)
            assert (await four.answer()).status == 200


@pytest.mark.parametrize("direct", [True, False])
async def test_a_slow_reader_gets_every_byte(direct: bool) -> None:
    piece = "y" * 2000
    script = Script(pieces=(piece,) * 300)
    async with live_server(script, direct_sink=direct) as server, await server.connect() as client:
        await client.send(post({**STREAM, "max_tokens": 10**7}))
        await wait_until(lambda: server.engine.requests)
        await trio.sleep(0.02)  # the sockets' buffers are full by now
        got = await client.read_until(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        body = got.partition(b"\r\n\r\n")[2]  # a piece may go on in the next chunk
        assert body.count(b"y") == 300 * len(piece)


@pytest.mark.slow
async def test_a_silent_client_does_not_slow_its_neighbour() -> None:
    """16 that never read, one that does: its stream is as fast as alone."""
    script = Script(pieces=("z" * 4000,) * 150, step_s=0.0005)
    async with live_server(script, write_stall_timeout_s=10) as server:
        silent = [await server.connect() for _ in range(16)]
        for client in silent:
            await client.send(post({**STREAM, "max_tokens": 10**7}))
        async with await server.connect() as reader:
            started = time.perf_counter()
            await reader.send(post(WHOLE))
            assert (await reader.answer()).status == 200
            assert time.perf_counter() - started < 3
        for client in silent:
            await trio.aclose_forcefully(client.stream)


async def test_two_servers_in_one_process() -> None:
    async with live_server() as first, live_server(Script(pieces=("other",))) as second:
        texts: list[str] = []
        for server in (first, second):
            async with await server.connect() as client:
                await client.send(post(WHOLE))
                texts.append((await client.answer()).json()["choices"][0]["text"])
        assert texts == ["Hello, world!", "other"]


async def test_gated_stream_delivers_a_token_before_the_next_but_one_is_made() -> None:
    gate = Gate()
    pieces = tuple("abcdefgh")
    for direct in (True, False):
        async with live_server(Script(pieces=pieces), gate=gate, direct_sink=direct) as server:
            async with await server.connect() as client:
                await client.send(post(STREAM))
                for piece in pieces:
                    gate.release()
                    await client.read_until(f'"text":"{piece}"'.encode())
                await client.read_until(b"data: [DONE]\n\n")


def dechunk(body: bytes) -> bytes:
    out = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        out += rest[:length]
        assert rest[length : length + 2] == b"\r\n"
        body = rest[length + 2 :]
    return out


@pytest.mark.parametrize("direct", [True, False])
async def test_golden_bytes_of_a_stream_on_the_wire(direct: bool) -> None:
    async with live_server(Script(pieces=('a"b', "é")), direct_sink=direct) as server:
        async with await server.connect() as client:
            body = {**STREAM, "stream_options": {"include_usage": True}}
            await client.send(post(body, more="Connection: close\r\n"))
            head, _, rest = (await client.read_to_end()).partition(b"\r\n\r\n")
    names = [line.split(b":")[0] for line in head.split(b"\r\n")[1:]]
    assert names[:3] == [b"content-type", b"cache-control", b"x-accel-buffering"]
    got = re.sub(rb'"id":"cmpl-[0-9a-f]{32}"', b'"id":"ID"', dechunk(rest))
    got = re.sub(rb'"created":[0-9]+', b'"created":0', got)
    start = (
        b'data: {"id":"ID","object":"text_completion","created":0,"model":"fake-model","choices":['
    )
    assert got == (
        start
        + b'{"index":0,"text":"a\\"b","logprobs":null,"finish_reason":null}]}\n\n'
        + start
        + '{"index":0,"text":"é","logprobs":null,"finish_reason":"stop","stop_reason":null}]}\n\n'.encode()
        + start
        + b'],"usage":{"prompt_tokens":2,"completion_tokens":5,"total_tokens":7,'
        b'"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
        b"data: [DONE]\n\n"
    )


async def test_head_is_answered_without_a_body() -> None:
    async with live_server() as server, await server.connect() as client:
        await client.send(b"HEAD /health HTTP/1.1\r\nHost: t\r\n\r\n" + GET_HEALTH)
        head = await client.read_until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert (await client.answer()).json() == {"status": "serving"}


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (
            (
                b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
            400,
        ),
        (b"GET /health HTTP/3.0\r\nHost: t\r\n\r\n", 505),
    ],
)
async def test_a_request_with_two_lengths_or_another_version_is_refused_and_cut_off(
    request_bytes: bytes, status: int
) -> None:
    async with live_server() as server, await server.connect() as client:
        await client.send(request_bytes + GET_HEALTH)
        answer = await client.answer()
        assert answer.status == status
        assert "error" in answer.json()
        await client.wait_closed()
