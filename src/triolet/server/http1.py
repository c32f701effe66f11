"""hypercorn's HTTP/1.1 protocol, with what it leaves open closed.

hypercorn parses requests (h11) and turns them into ASGI; this module changes three things:

* errors below the application are JSON, as all others are;
* HTTP/2 is refused: hypercorn's has no back-pressure at a closed flow-control window, and it
  cannot be switched off by configuration;
* the queue of ASGI messages never blocks a disconnect, and is bounded in bytes.

It leans on private names of hypercorn 0.18, which pyproject.toml pins.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed
from hypercorn.protocol.h11 import H11Protocol
from typing_extensions import override

from triolet.config import ServerConfig
from triolet.protocol import sse
from triolet.protocol.error_object import error_object

logger = logging.getLogger("triolet.server")

INBOX_BYTES = 256 << 10
"""Body bytes that wait for a request to read them; then the socket is not read."""

_ERRORS = {
    400: ("the request is not valid HTTP/1.1", "invalid_http"),
    408: ("the request's headers did not arrive in time", "request_timeout"),
    414: ("the request line is too long", "request_line_too_long"),
    431: ("the request's headers are too large (max_header_bytes)", "headers_too_large"),
    501: ("this transfer encoding is not supported; use chunked", "unsupported_encoding"),
    503: ("too many connections (max_connections)", "too_many_connections"),
    505: ("HTTP/2 is not supported; use HTTP/1.1", "http_version_not_supported"),
}


class RequestRefused(Exception):
    """The request breaks a rule of this server; it was told so."""


def hypercorn_config(config: ServerConfig) -> Config:
    """The settings of hypercorn's protocol; its own server and logs are not used."""
    out = Config()
    out.accesslog = None
    out.errorlog = None
    out.h11_max_incomplete_size = config.max_header_bytes
    out.include_server_header = False
    # A connection is closed for being idle, not for being used.
    out.keep_alive_max_requests = 10**9
    return out


def plain_error(status: int) -> bytes:
    """A whole HTTP/1.1 answer, for a connection that never becomes a request."""
    body = _error_body(status)
    return (
        b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"connection: close\r\nretry-after: 1\r\n\r\n%b"
        % (status, HTTPStatus(status).phrase.encode(), len(body), body)
    )


def _error_body(status: int) -> bytes:
    message, code = _ERRORS.get(status, _ERRORS[400])
    return sse.dump(error_object(status, message, code))


class Http1(H11Protocol):
    """One connection's protocol state."""

    @property
    def request_complete(self) -> bool:
        """Whether a request was received whole and its answer is not: what comes is too early."""
        return self.stream is not None and self.connection.their_state in (h11.DONE, h11.MUST_CLOSE)

    async def refuse(self, status: int) -> None:
        """Answer without an application, and close. A checkpoint."""
        if isinstance(self.connection, h11.Connection) and self.connection.our_state is h11.IDLE:
            await self._send_error_response(status)
        await self.send(Closed())

    @override
    async def _check_protocol(self, event: h11.Request) -> None:
        # An "Upgrade: h2c" is not taken up, which RFC 9110 section 7.8 leaves to the server.
        if event.method == b"PRI" and event.http_version == b"2.0":
            await self._refuse_request(505)
        if event.http_version not in (b"1.0", b"1.1"):
            await self._refuse_request(505)
        names = {name for name, _ in event.headers}
        if {b"content-length", b"transfer-encoding"} <= names:
            # RFC 9112 section 6.1: two lengths are how requests are smuggled past a proxy.
            await self._refuse_request(400)
        size = len(event.target) + sum(len(name) + len(value) for name, value in event.headers)
        if size > self.config.h11_max_incomplete_size:
            # h11 limits what is incomplete: headers that came at once have no limit there.
            await self._refuse_request(431)

    async def _refuse_request(self, status: int) -> None:
        await self._send_error_response(status)
        await self.send(Closed())
        raise RequestRefused

    @override
    async def _send_error_response(self, status_code: int) -> None:
        body = _error_body(status_code)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (b"x-should-retry", b"false"),
        ]
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())


class Inbox:
    """ASGI messages for one request: bodies are bounded, a disconnect always fits."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._size = 0
        self._closed = False
        self._changed = trio.Event()

    async def put(self, message: dict[str, Any]) -> None:
        """Add a message; waits for the application while too many bytes wait. A checkpoint."""
        await trio.lowlevel.checkpoint()
        if message["type"] == "http.request":
            while self._size >= INBOX_BYTES and not self._closed:
                await self._changed.wait()
        if not self._closed:
            self._size += len(message.get("body", b""))
            self._messages.append(message)
            self._wake()

    async def receive(self) -> dict[str, Any]:
        """ASGI receive. A checkpoint; cancelled, nothing is lost."""
        await trio.lowlevel.checkpoint()
        while not self._messages:
            await self._changed.wait()
        message = self._messages.pop(0)
        self._size -= len(message.get("body", b""))
        self._wake()
        return message

    def close(self) -> None:
        """The application has returned: what comes now is for nobody."""
        self._closed = True
        self._messages.clear()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class RequestTasks:
    """hypercorn's `TaskGroup`: runs the application of each request in a nursery."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    async def spawn_app(
        self,
        app: Callable[..., Awaitable[None]],
        config: Config,
        scope: dict[str, Any],
        send: Callable[[Any], Awaitable[None]],
    ) -> Callable[[dict[str, Any]], Awaitable[None]]:
        """Start the application for one request; return where its messages go."""
        inbox = Inbox()
        self._nursery.start_soon(_run_app, app, scope, inbox, send)
        return inbox.put

    def spawn(self, func: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run something else of the protocol."""
        self._nursery.start_soon(func, *args)


async def _run_app(
    app: Callable[..., Awaitable[None]],
    scope: dict[str, Any],
    inbox: Inbox,
    send: Callable[[Any], Awaitable[None]],
) -> None:
    try:
        await app(scope, inbox.receive, send)
    except Exception:  # this request fails (500, or a cut answer); the server goes on
        logger.exception("%s %s failed in the application", scope.get("method"), scope["path"])
    inbox.close()
    await send(None)
