"""The real HTTP server on loopback over a fake engine, and a client that is only a socket."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import attrs
import trio

from triolet.config import ServerConfig
from triolet.server.app import TrioletApp, create_app
from triolet.server.http_server import HttpServer
from triolet.server.listeners import open_listeners
from triolet.testing.fake_engine import FakeEngine, Gate, Script

PATIENCE_S = 5.0
"""How long a test waits for what must happen."""


@attrs.frozen
class LiveServer:
    """A running server."""

    url: str
    port: int
    app: TrioletApp
    http: HttpServer
    engine: FakeEngine

    async def connect(self) -> RawClient:
        return RawClient(await trio.open_tcp_stream("127.0.0.1", self.port))

    @property
    def connections(self) -> int:
        value = self.http.tree()["connections"]
        assert isinstance(value, int)
        return value


@asynccontextmanager
async def live_server(
    script: Script | None = None,
    *,
    gate: Gate | None = None,
    engine: FakeEngine | None = None,
    **settings: object,
) -> AsyncGenerator[LiveServer]:
    config = ServerConfig(port=0, **settings)  # type: ignore[arg-type]  # any setting
    async with engine or FakeEngine(script, gate=gate) as fake:
        app = create_app(fake, config)
        http = HttpServer(app.serve_asgi, config)
        listening = await open_listeners(config)
        async with trio.open_nursery() as nursery:
            await nursery.start(app.api.run)
            await nursery.start(http.run, listening.listeners)
            port = int(listening.url.rpartition(":")[2])
            yield LiveServer(listening.url, port, app, http, fake)
            nursery.cancel_scope.cancel()


@attrs.frozen
class RawAnswer:
    """An HTTP answer as it came over the socket."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:  # noqa: ANN401  whatever the server sent
        return json.loads(self.body)


class RawClient:
    """A socket with a little HTTP."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.buffer = b""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await trio.aclose_forcefully(self.stream)

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def more(self) -> bool:
        """Read something; False at the end or after a reset."""
        with trio.fail_after(PATIENCE_S):
            try:
                data = await self.stream.receive_some(65536)
            except trio.BrokenResourceError:
                return False
        self.buffer += data
        return bool(data)

    async def read_until(self, marker: bytes) -> bytes:
        """Everything up to and with a marker."""
        while marker not in self.buffer:
            assert await self.more(), f"closed before {marker!r}: {self.buffer!r}"
        before, _, self.buffer = self.buffer.partition(marker)
        return before + marker

    async def read_to_end(self) -> bytes:
        while await self.more():
            pass
        data, self.buffer = self.buffer, b""
        return data

    async def answer(self) -> RawAnswer:
        """One answer with a content length, or up to the end of the connection."""
        head = (await self.read_until(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = head.strip().split("\r\n")
        headers = {k.strip().lower(): v.strip() for k, v in (line.split(":", 1) for line in lines)}
        if "content-length" in headers:
            length = int(headers["content-length"])
            while len(self.buffer) < length:
                assert await self.more(), "closed in the body"
            body, self.buffer = self.buffer[:length], self.buffer[length:]
        else:
            body = await self.read_to_end()
        return RawAnswer(int(status_line.split()[1]), headers, body)

    async def wait_closed(self) -> None:
        """Read until the server closes, whatever it sends."""
        while await self.more():
            pass


def post(
    body: object, path: str = "/v1/completions", version: str = "1.1", more: str = ""
) -> bytes:
    """A POST request as bytes."""
    content = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/{version}\r\nHost: test\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n{more}\r\n"
    ).encode() + content


STREAM = {"prompt": "Hi", "stream": True}
WHOLE = {"prompt": "Hi"}


async def wait_until(condition: Callable[[], object]) -> None:
    """Wait for something to become true. Fails after the patience of a test."""
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.001)
