"""The event writer against a socket that takes what the test says, on a virtual clock."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from triolet.config import ServerConfig
from triolet.errors import ClientStalled
from triolet.protocol.sse import KEEP_ALIVE
from triolet.server.api.asgi import CONNECTION_KEY, Event
from triolet.server.api.exchange import Exchange
from triolet.server.api.sse import EventWriter


class FakeSocket:
    """Takes `room` bytes, then nothing until the test makes room again."""

    direct = True

    def __init__(self, room: int = 10**9) -> None:
        self.room = room
        self.taken = b""
        self.aborted = False
        self.error: OSError | None = None
        self._writable = trio.Event()

    def write_nowait(self, data: bytes) -> int:
        if self.error is not None:
            raise self.error
        count = min(self.room, len(data))
        self.room -= count
        self.taken += data[:count]
        return count

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        while self.room == 0 and self.error is None:
            await self._writable.wait()

    def make_room(self, room: int) -> None:
        self.room += room
        self._writable.set()
        self._writable = trio.Event()

    def abort(self) -> None:
        self.aborted = True


class Sent:
    """ASGI send that remembers."""

    def __init__(self) -> None:
        self.messages: list[Event] = []
        self.stuck = False

    async def __call__(self, message: Event) -> None:
        await trio.lowlevel.checkpoint()
        if self.stuck:
            await trio.sleep_forever()
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.messages)

    @property
    def complete(self) -> bool:
        return self.messages[-1].get("more_body") is False


async def never() -> Event:
    await trio.sleep_forever()
    raise AssertionError


def exchange(send: Sent, socket: FakeSocket | None, version: str = "1.1") -> Exchange:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [],
        "http_version": version,
        "state": {} if socket is None else {CONNECTION_KEY: socket},
    }
    return Exchange(scope, never, send, ServerConfig())


def writer(limit: int = 1000, keep_alive_s: float = 0.0, direct: bool = True) -> EventWriter:
    return EventWriter(limit, stall_s=30.0, keep_alive_s=keep_alive_s, direct=direct)


async def test_direct_writes_reach_the_socket_in_the_same_turn() -> None:
    socket, send, out = FakeSocket(), Sent(), writer()
    out.write(b"early")
    await out.open(exchange(send, socket))
    assert socket.taken == b"5\r\nearly\r\n"
    out.write(b"data: x\n\n")
    assert socket.taken == b"5\r\nearly\r\n9\r\ndata: x\n\n\r\n"
    await out.finish(b"")
    assert send.complete
    assert send.body == b""


async def test_what_a_full_socket_leaves_is_sent_in_order_when_it_has_room() -> None:
    socket, send, out = FakeSocket(room=3), Sent(), writer()
    await out.open(exchange(send, socket))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(out.run)
        for piece in (b"aaaa", b"bbbb", b"cccc"):
            out.write(piece)
        out.close()
        for _ in range(30):
            await wait_all_tasks_blocked()
            socket.make_room(1)
    assert socket.taken == b"4\r\naaaa\r\n4\r\nbbbb\r\n4\r\ncccc\r\n"


@pytest.mark.parametrize(
    ("socket", "version", "direct"),
    [(None, "1.1", True), (FakeSocket(), "1.0", True), (FakeSocket(), "1.1", False)],
)
async def test_elsewhere_everything_goes_through_send(
    socket: FakeSocket | None, version: str, direct: bool
) -> None:
    send, out = Sent(), writer(direct=direct)
    await out.open(exchange(send, socket, version))
    out.write(b"one")
    out.close()
    await out.run()
    await out.finish(b"two")
    assert send.body == b"onetwo"
    assert send.complete
    assert socket is None or socket.taken == b""


async def test_more_than_the_bound_fails_the_request_and_the_answer() -> None:
    socket, send, out = FakeSocket(room=0), Sent(), writer(limit=100)
    await out.open(exchange(send, socket))
    out.write(b"x" * 80)
    with pytest.raises(ClientStalled):
        out.write(b"x" * 80)
    with pytest.raises(ClientStalled):
        await out.run()


async def test_opening_bytes_do_not_count_against_the_client() -> None:
    socket, send, out = FakeSocket(room=0), Sent(), writer(limit=100)
    await out.open(exchange(send, socket))
    out.allow(500)
    out.write(b"x" * 500)
    with pytest.raises(ClientStalled):
        out.write(b"x" * 100)


@pytest.mark.parametrize("direct", [True, False])
async def test_a_client_that_takes_nothing_is_stalled_after_the_limit(
    autojump_clock: MockClock, direct: bool
) -> None:
    socket, send, out = FakeSocket(room=0), Sent(), writer(direct=direct)
    await out.open(exchange(send, socket))
    send.stuck = True
    out.write(b"x")
    started = trio.current_time()
    with pytest.raises(ClientStalled):
        await out.run()
    assert trio.current_time() - started == 30


async def test_a_client_that_takes_a_little_is_not_stalled(autojump_clock: MockClock) -> None:
    socket, send, out = FakeSocket(room=0), Sent(), writer()
    await out.open(exchange(send, socket))
    out.write(b"x" * 10)
    out.close()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(out.run)
        for _ in range(15):
            await trio.sleep(29)
            socket.make_room(1)
    assert socket.taken == b"a\r\n" + b"x" * 10 + b"\r\n"


async def test_silence_is_filled_with_comments_and_tokens_reset_it(
    autojump_clock: MockClock,
) -> None:
    socket, send, out = FakeSocket(), Sent(), writer(keep_alive_s=15.0)
    await out.open(exchange(send, socket))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(out.run)
        await trio.sleep(31)
        assert socket.taken.count(KEEP_ALIVE) == 2
        out.write(b"token")
        await trio.sleep(14)
        out.close()
    assert socket.taken.count(KEEP_ALIVE) <= 3


async def test_a_broken_socket_ends_the_writer_quietly() -> None:
    socket, send, out = FakeSocket(), Sent(), writer()
    await out.open(exchange(send, socket))
    socket.error = BrokenPipeError()
    out.write(b"x")
    out.write(b"y")
    await out.run()
    await out.finish(b"z")
    assert not send.complete


async def test_finish_gives_up_after_the_stall_limit_and_cuts_the_connection(
    autojump_clock: MockClock,
) -> None:
    socket, send, out = FakeSocket(room=0), Sent(), writer()
    await out.open(exchange(send, socket))
    await out.finish(b"data: [DONE]\n\n")
    assert socket.aborted
    assert not send.complete


async def test_a_send_cancelled_half_way_is_neither_repeated_nor_followed() -> None:
    socket, send, out = FakeSocket(), Sent(), writer(direct=False)
    await out.open(exchange(send, socket))
    send.stuck = True
    out.write(b"half")
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(out.run)
            await wait_all_tasks_blocked()
            scope.cancel()
    send.stuck = False
    await out.finish(b"error")
    assert socket.aborted
    assert send.body == b""
    assert not send.complete
