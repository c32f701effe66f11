"""The writing half of one SSE response: bytes from the dispatcher's turn to the socket.

`write` is synchronous: on our own server it hands the bytes to the socket at once, and keeps
what the socket does not take in a bounded remainder; on a foreign server, over TLS or to an
HTTP/1.0 client everything goes through the remainder and ASGI's `send`. `run`, in the
request's task, sends the remainder, the keep-alive comments, and watches for a stalled client.
"""

from __future__ import annotations

import trio

from triolet.errors import ClientStalled, InternalError
from triolet.protocol.sse import KEEP_ALIVE
from triolet.server.api.asgi import ConnectionControl, Send, connection_of
from triolet.server.api.exchange import Exchange

SEND_PIECE_BYTES = 64 << 10
"""Bytes handed to `send` at once: a stall is measured per piece."""

EVENT_STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
)


class EventWriter:
    """Events of one response, in order.

    Args:
        buffer_bytes: Bytes that may wait for the client before it counts as stalled.
        stall_s: Seconds without progress before it counts as stalled.
        keep_alive_s: Seconds of silence between two comments; 0 sends none.
        direct: Whether the socket may be written directly where that is possible.
    """

    def __init__(
        self, buffer_bytes: int, stall_s: float, keep_alive_s: float, direct: bool
    ) -> None:
        self._limit = buffer_bytes
        self._stall_s = stall_s
        self._keep_alive_s = keep_alive_s
        self._direct_wanted = direct
        self._buffer = bytearray()
        self._wake = trio.Event()
        self._closed = False
        self._broken = False
        self._overflow: ClientStalled | None = None
        self._send: Send | None = None
        self._socket: ConnectionControl | None = None
        self._connection: ConnectionControl | None = None

    def allow(self, num_bytes: int) -> None:
        """Raise the bound: these bytes are owed at once, however fast the client reads."""
        self._limit += num_bytes

    def write(self, event: bytes) -> None:
        """Send or keep the bytes of whole events. Synchronous; never blocks.

        Raises:
            ClientStalled: More would wait for the client than the bound allows.
        """
        if not event or self._broken:
            return
        if self._socket is not None:
            event = b"%x\r\n%b\r\n" % (len(event), event)
            if not self._buffer:
                event = event[self._try_socket(event) :]
        if not event:
            return
        self._buffer += event
        self._wake.set()
        if len(self._buffer) > self._limit:
            # Raised here it fails the request in the engine, and in `run` it ends the answer.
            self._overflow = ClientStalled(
                f"the client reads too slowly: more than {self._limit} bytes wait for it"
            )
            raise self._overflow

    def close(self) -> None:
        """No more events will come; `run` returns when everything is sent."""
        self._closed = True
        self._wake.set()

    async def open(self, exchange: Exchange) -> None:
        """Start the response; what was written before goes out first. A checkpoint."""
        await exchange.start(200, EVENT_STREAM)
        self._send = exchange.send
        self._connection = connection_of(exchange.scope)
        if (
            self._direct_wanted
            and self._connection is not None
            and self._connection.direct
            and exchange.scope.get("http_version") == "1.1"
        ):
            early = bytes(self._buffer)
            self._buffer.clear()
            self._socket = self._connection
            self.write(early)
        self._wake.set()

    async def run(self) -> None:
        """Send until the writer is closed and empty. A checkpoint.

        Cancelled in mid-event, what was not sent stays: `finish` goes on with it.

        Raises:
            ClientStalled: The client took no byte for the stall limit.
        """
        while not self._broken:
            if self._overflow is not None:
                raise self._overflow
            if self._buffer:
                await self._flush()
            elif self._closed:
                return
            else:
                await self._wait()

    async def finish(self, last_event: bytes) -> None:
        """Send what is left, one more event, and the end of the response. A checkpoint.

        Takes at most the stall limit; past it the connection is cut.
        """
        with trio.move_on_after(self._stall_s) as scope:
            try:
                self.allow(len(last_event) + 16)
                self.write(last_event)
                self.close()
                await self.run()
            except ClientStalled:
                self.abort()
                return
        if scope.cancelled_caught:
            self.abort()
        elif not self._broken:
            assert self._send is not None, "finish comes after open"
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def abort(self) -> None:
        """Cut the connection: the answer cannot be completed."""
        self._broken = True
        if self._connection is not None:
            self._connection.abort()

    async def _wait(self) -> None:
        # No checkpoint between this line and the wait: a write before it is seen in `run`.
        self._wake = trio.Event()
        if self._keep_alive_s == 0:
            await self._wake.wait()
            return
        with trio.move_on_after(self._keep_alive_s) as scope:
            await self._wake.wait()
        if scope.cancelled_caught:
            self.write(KEEP_ALIVE)

    async def _flush(self) -> None:
        piece = bytes(self._buffer[:SEND_PIECE_BYTES])
        with trio.move_on_after(self._stall_s) as scope:
            if self._socket is not None:
                await self._socket.wait_writable()
                del self._buffer[: self._try_socket(piece)]
            else:
                await self._send_piece(piece)
        if scope.cancelled_caught:
            self._broken = True
            raise ClientStalled(f"the client took no byte for {self._stall_s:g} s")

    async def _send_piece(self, piece: bytes) -> None:
        if self._send is None:
            raise InternalError("run comes after open")
        # A send that is cancelled may have sent any part: it must not be repeated, and
        # nothing can follow it.
        del self._buffer[: len(piece)]
        try:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        except trio.Cancelled:
            self.abort()
            raise

    def _try_socket(self, data: bytes) -> int:
        assert self._socket is not None
        try:
            return self._socket.write_nowait(data)
        except OSError:
            # The reader of the connection sees the same and ends the request.
            self._broken = True
            self._buffer.clear()
            self._wake.set()
            return len(data)
