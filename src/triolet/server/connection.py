"""One client's socket: bytes in, bytes out, and who is gone.

hypercorn's own connection class shields its sends, stops reading while a request is
answered, and times idleness in a task that a cancelled request takes with it. Here:

* the socket is always read, so that a client that leaves is noticed in every state; bytes
  behind a request wait, up to a bound;
* FIN means gone: after it nobody can tell a client that still reads from one that does not,
  and work for nobody is worse than a refused half-close (docs/reference/limits.md);
* a send can be cancelled and has a stall limit; a cancelled one closes the connection;
* idleness is the deadline of the reader's own scope.
"""

from __future__ import annotations

import os
from typing import cast

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState, TaskGroup
from hypercorn.utils import parse_socket_addr

from triolet.config import ServerConfig
from triolet.server.api.asgi import CONNECTION_KEY, App
from triolet.server.http1 import Http1, RequestRefused, RequestTasks

RECEIVE_BYTES = 64 << 10
PENDING_BYTES_MAX = 64 << 10
"""Bytes behind a request that is being answered; a client that sends more is cut off."""

SEND_PIECE_BYTES = 64 << 10
"""A stall is measured per piece, so that a large answer may take its time."""

LINGER_S = 2.0
"""After the last answer the client may read it for this long before the socket is closed:
closing with unread bytes in the socket would reset the connection and destroy the answer."""

UNWIND_S = 5.0
"""Seconds that requests of a client that is gone have to end by themselves."""

HANDSHAKE_S = 10.0

SocketStream = trio.SocketStream
Address = tuple[str, int] | None
Stream = SocketStream | trio.SSLStream[SocketStream]


class Connection:
    """A connection from accept to close. See `ConnectionControl` for what the API may do.

    Args:
        app: The ASGI application.
        config: Limits.
        protocol_config: hypercorn's settings.
        context: Shared by all connections; knows when the server drains.
        stream: The accepted socket, or TLS over it.
    """

    def __init__(
        self,
        app: App,
        config: ServerConfig,
        protocol_config: Config,
        context: WorkerContext,
        stream: Stream,
    ) -> None:
        self._app = app
        self._config = config
        self._protocol_config = protocol_config
        self._context = context
        self._stream = stream
        self._socket = (
            stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        ).socket
        self._tls = isinstance(stream, trio.SSLStream)
        # os.write takes a socket's descriptor on POSIX only.
        self.direct = os.name == "posix" and not self._tls
        self.idle = True
        self._head_begun = False
        self._broken = False
        self._discarding = False
        self._pending = bytearray()
        self._changed = trio.Event()
        self._read_scope = trio.CancelScope()
        self._feed_scope = trio.CancelScope()
        self._feed_ended = trio.Event()
        self._send_lock = trio.Lock()
        self._protocol: Http1

    # What the API may do: ConnectionControl.

    def write_nowait(self, data: bytes) -> int:
        """Hand bytes to the socket; return how many it took, 0 when its buffer is full.

        Raises:
            OSError: The connection is gone.
        """
        try:
            return os.write(self._socket.fileno(), data)
        except BlockingIOError:
            return 0

    async def wait_writable(self) -> None:
        """Wait until the socket takes bytes again, or is gone. A checkpoint."""
        try:
            await trio.lowlevel.wait_writable(self._socket)
        except trio.ClosedResourceError:
            return

    def abort(self) -> None:
        """Close at once; an answer in progress is cut off."""
        self._broken = True
        self._read_scope.cancel(reason="connection aborted")
        self._socket.close()

    # The server's side.

    def drain(self) -> None:
        """The server is stopping: an idle connection has nothing to wait for.

        One whose next request has begun to arrive is answered (503) and closed after that.
        """
        if self.idle and not self._head_begun:
            self._read_scope.cancel(reason="server draining")

    async def run(self) -> None:
        """Serve the connection until it is closed. A checkpoint."""
        try:
            if not await self._handshake():
                return
            try:
                client = parse_socket_addr(self._socket.family, self._socket.getpeername())
                server = parse_socket_addr(self._socket.family, self._socket.getsockname())
            except OSError:
                return  # reset before it was accepted
            async with trio.open_nursery() as nursery:
                self._protocol = self._make_protocol(nursery, client, server)
                nursery.start_soon(self._feed)
                await self._read()
                self._feed_scope.cancel(reason="client gone")
                # A feeder that was about to run still makes a request of what it took: that
                # request must be told, too.
                await self._feed_ended.wait()
                await self._protocol.handle(Closed())
                nursery.cancel_scope.deadline = trio.current_time() + UNWIND_S
        finally:
            self._socket.close()

    async def _handshake(self) -> bool:
        if not isinstance(self._stream, trio.SSLStream):
            return True
        with trio.move_on_after(HANDSHAKE_S):
            try:
                await self._stream.do_handshake()
            except trio.BrokenResourceError:
                return False
            return True
        return False

    def _make_protocol(self, nursery: trio.Nursery, client: Address, server: Address) -> Http1:
        return Http1(
            cast("AppWrapper", self._app),
            self._protocol_config,
            self._context,
            cast("TaskGroup", RequestTasks(nursery)),
            ConnectionState({CONNECTION_KEY: self}),
            self._tls,
            client,
            server,
            self._on_event,
        )

    async def _read(self) -> None:
        """Take bytes until the client is gone, idle for too long, or told to go."""
        self._read_scope.deadline = trio.current_time() + self._config.keep_alive_timeout_s
        with self._read_scope:
            while not self._broken:
                try:
                    data = await self._stream.receive_some(RECEIVE_BYTES)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return
                if not data:
                    return
                if not self._discarding:
                    await self._take(bytes(data))
        if self._head_begun and self.idle and not self._broken and not self._discarding:
            with trio.move_on_after(LINGER_S):
                await self._protocol.refuse(408)

    async def _take(self, data: bytes) -> None:
        if self.idle and not self._head_begun:
            self._head_begun = True
            limit = trio.current_time() + self._config.request_timeout_s
            self._read_scope.deadline = min(self._read_scope.deadline, limit)
        self._pending += data
        self._wake()
        while len(self._pending) > PENDING_BYTES_MAX and not self._discarding:
            if self._protocol.request_complete:
                self.abort()
                return
            await self._changed.wait()

    async def _feed(self) -> None:
        """Give what was read to the protocol, which may wait for the application."""
        try:
            with self._feed_scope:
                while True:
                    while not self._pending:
                        await self._changed.wait()
                    data = bytes(self._pending)
                    self._pending.clear()
                    self._wake()
                    await self._protocol.handle(RawData(data))
        except RequestRefused:
            return
        finally:
            self._feed_ended.set()

    async def _on_event(self, event: Event) -> None:
        """What the protocol says."""
        if isinstance(event, RawData):
            await self._send(event.data)
        elif isinstance(event, Updated):
            self.idle = event.idle
            self._head_begun = False
            if event.idle:
                limit = trio.current_time() + self._config.keep_alive_timeout_s
                self._read_scope.deadline = limit
            else:
                self._read_scope.deadline = float("inf")
        elif isinstance(event, Closed):
            await self._finish()

    async def _finish(self) -> None:
        """The last answer was sent: tell the client, and let it read."""
        self._discarding = True
        self._pending.clear()
        self._wake()
        self._read_scope.deadline = trio.current_time() + LINGER_S
        if not self._broken:
            try:
                # The end of the answer is in its framing, so TLS needs no closing message.
                self._socket.shutdown(trio.socket.SHUT_WR)
            except OSError:
                self._broken = True
        await self._protocol.handle(Closed())

    async def _send(self, data: bytes) -> None:
        """Send bytes within the stall limit. A checkpoint where the socket is full.

        Cancelled, the connection is closed: what was half sent can neither be repeated nor
        completed.
        """
        if self._broken:
            return
        if self.direct and not self._send_lock.locked():
            try:
                data = data[self.write_nowait(data) :]
            except OSError:
                await self._lost()
                return
            if not data:
                return
        try:
            async with self._send_lock:
                for start in range(0, len(data), SEND_PIECE_BYTES):
                    piece = data[start : start + SEND_PIECE_BYTES]
                    with trio.fail_after(self._config.write_stall_timeout_s):
                        await self._stream.send_all(piece)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            await self._lost()
        except trio.Cancelled:
            self.abort()
            raise

    async def _lost(self) -> None:
        self.abort()
        await self._protocol.handle(Closed())

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
