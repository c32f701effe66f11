"""A client that leaves takes its work with it: in every state, by every way of leaving."""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable

import pytest
import trio

from support.live_server import STREAM, WHOLE, LiveServer, RawClient, live_server, post, wait_until
from triolet.testing.fake_engine import Gate, Script

pytestmark = pytest.mark.e2e

Leave = Callable[[RawClient], Awaitable[None]]


async def fin(client: RawClient) -> None:
    await client.stream.aclose()


async def reset(client: RawClient) -> None:
    linger = struct.pack("ii", 1, 0)
    client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    await client.stream.aclose()


async def half_close(client: RawClient) -> None:
    await client.stream.send_eof()


WAYS: list[Leave] = [fin, reset, half_close]


async def ended(server: LiveServer, num_requests: int = 1) -> None:
    """Every request was admitted or asked for, and none is left."""
    await wait_until(lambda: len(server.engine.requests) >= num_requests and not server.engine.live)


@pytest.mark.parametrize("leave", WAYS)
@pytest.mark.parametrize("direct", [True, False])
async def test_leaving_a_stream_between_tokens_ends_its_request(leave: Leave, direct: bool) -> None:
    gate = Gate()
    async with live_server(gate=gate, direct_sink=direct) as server:
        async with await server.connect() as client:
            await client.send(post(STREAM))
            await wait_until(lambda: server.engine.live)
            gate.release()
            await client.read_until(b'"text":"Hello"')
            await leave(client)
            await ended(server)
        assert server.engine.requests[0].state == "ended"
        assert server.engine.requests[0].deltas == 1


@pytest.mark.parametrize("leave", WAYS)
async def test_leaving_before_the_first_byte_ends_a_whole_answer(leave: Leave) -> None:
    async with live_server(gate=Gate()) as server:
        async with await server.connect() as client:
            await client.send(post(WHOLE))
            await wait_until(lambda: server.engine.live)
            await leave(client)
            await ended(server)
        assert server.engine.requests[0].state == "ended"


@pytest.mark.parametrize("leave", WAYS)
async def test_leaving_while_the_prompt_is_tokenized_ends_it_there(leave: Leave) -> None:
    async with live_server(Script(tokenize_s=60)) as server:
        async with await server.connect() as client:
            await client.send(post(STREAM))
            await wait_until(lambda: server.engine.live)
            await leave(client)
            await ended(server)
        assert server.engine.requests[0].state == "ended"


@pytest.mark.parametrize(
    "behind",
    [b"\r\n", b"\r\n\r\n", b"garbage", post(WHOLE), post(WHOLE) * 3],
    ids=["crlf", "two", "garbage", "pipelined", "three"],
)
@pytest.mark.parametrize("body", [STREAM, WHOLE], ids=["stream", "whole"])
async def test_bytes_behind_the_body_do_not_hide_a_disconnect(
    behind: bytes, body: dict[str, object]
) -> None:
    async with live_server(gate=Gate()) as server:
        async with await server.connect() as client:
            await client.send(post(body) + behind)
            await wait_until(lambda: server.engine.live)
            await client.stream.aclose()
            await ended(server)
        assert len(server.engine.requests) == 1  # what was pipelined is never started
        await wait_until(lambda: server.connections == 0)


async def test_endless_bytes_behind_the_body_cut_the_client_off() -> None:
    async with live_server(gate=Gate()) as server:
        async with await server.connect() as client:
            await client.send(post(WHOLE))
            await wait_until(lambda: server.engine.live)
            with pytest.raises(trio.BrokenResourceError):
                while True:
                    await client.send(b"x" * 65536)
            await ended(server)


async def test_leaving_inside_the_body_or_the_headers_starts_nothing() -> None:
    async with live_server() as server:
        whole = post(WHOLE)
        for size in (5, 40, whole.index(b"\r\n\r\n") + 4, len(whole) - 3):
            async with await server.connect() as client:
                await client.send(whole[:size])
                await client.stream.aclose()
        await wait_until(lambda: server.http.tree()["accepted"] == 4 and server.connections == 0)
        assert server.engine.requests == []


async def test_leaving_on_a_kept_connection_ends_its_second_request() -> None:
    gate = Gate()
    gate.release(4)
    async with live_server(gate=gate) as server:
        async with await server.connect() as client:
            await client.send(post(WHOLE))
            assert (await client.answer()).status == 200
            await client.send(post(STREAM))
            await wait_until(lambda: server.engine.live)
            await client.stream.aclose()
            await ended(server, 2)
        assert [r.state for r in server.engine.requests] == ["finished", "ended"]


async def test_leaving_a_stream_over_http_1_0_ends_its_request() -> None:
    gate = Gate()
    async with live_server(gate=gate) as server:
        async with await server.connect() as client:
            await client.send(post(STREAM, version="1.0"))
            await wait_until(lambda: server.engine.live)
            gate.release()
            await client.read_until(b'"text":"Hello"')
            await client.stream.aclose()
            await ended(server)


async def test_leaving_ends_every_prompt_and_every_output() -> None:
    async with live_server(gate=Gate()) as server:
        async with await server.connect() as client:
            await client.send(post({"prompt": ["a", "b", "c"], "n": 2, "stream": True}))
            await wait_until(lambda: len(server.engine.live) == 3)
            await client.stream.aclose()
            await ended(server, 3)


async def test_a_client_that_leaves_touches_nobody_else() -> None:
    gate = Gate()
    async with live_server(gate=gate) as server:
        async with await server.connect() as stays, await server.connect() as leaves:
            await stays.send(post(STREAM))
            await leaves.send(post(STREAM))
            await wait_until(lambda: len(server.engine.live) == 2)
            await leaves.stream.aclose()
            await wait_until(lambda: len(server.engine.live) == 1)
            gate.release(8)
            await stays.read_until(b"data: [DONE]\n\n")


@pytest.mark.parametrize("direct", [True, False])
async def test_a_client_that_never_reads_is_ended_after_the_stall_limit(direct: bool) -> None:
    script = Script(pieces=("x" * 4000,) * 2000)
    async with live_server(script, direct_sink=direct, write_stall_timeout_s=0.05) as server:
        async with await server.connect() as client:
            client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await client.send(post({**STREAM, "max_tokens": 10**7}))
            await wait_until(lambda: server.engine.live)
            await ended(server)
            assert server.engine.requests[0].state in ("ended", "failed")
            await wait_until(lambda: server.connections == 0)


@pytest.mark.slow
async def test_500_clients_that_leave_at_random_leave_nothing_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import random

    rng = random.Random(7)
    script = Script(pieces=("x",) * 50, tokenize_s=0.002, first_token_s=0.002, step_s=0.001)
    async with live_server(script) as server:

        async def visit() -> None:
            async with await server.connect() as client:
                body = STREAM if rng.random() < 0.5 else WHOLE
                await client.send(post({**body, "max_tokens": 100}))
                await trio.sleep(rng.random() * 0.06)
                if rng.random() < 0.5:
                    await reset(client)

        for _ in range(10):
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(visit)
        await wait_until(lambda: server.connections == 0 and not server.engine.live)
        assert len(server.app.api.services.live) == 0
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []
        states = {request.state for request in server.engine.requests}
        assert "ended" in states
        async with await server.connect() as client:
            await client.send(post(WHOLE))
            assert (await client.answer()).status == 200
