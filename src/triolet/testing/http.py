"""An HTTP client in memory, against an ASGI app on trio: no socket, virtual time works.

client = AsgiClient(create_app(engine))
reply = await client.post("/v1/completions", {"prompt": "Hi"})
async with client.stream("/v1/completions", {"prompt": "Hi", "stream": True}) as stream:
async for event in stream.events():
...
stream.disconnect()
"""

from __future__ import annotations

import json as jsonlib
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import attrs
import trio

from triolet.errors import InternalError

Event = MutableMapping[str, Any]
AsgiApp = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[Event]],
        Callable[[Event], Awaitable[None]],
    ],
    Awaitable[None],
]


@attrs.frozen
class HttpReply:
    """A whole answer.

    Attributes:
        status: HTTP status.
        headers: Names in lower case; the last of a name wins.
        body: Bytes of the body.
    """

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:  # noqa: ANN401  whatever JSON the server sent
        """The body, parsed."""
        return jsonlib.loads(self.body)


class HttpStream:
    """An answer while it arrives.

    Attributes:
        status: HTTP status.
        headers: Names in lower case.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.gone = False
        self.complete = False
        self._chunks: list[bytes] = []
        self._changed = trio.Event()
        self._started = trio.Event()

    def disconnect(self) -> None:
        """Leave: the app gets `http.disconnect`, and its sends go nowhere."""
        self.gone = True
        self._wake()

    async def wait_started(self) -> None:
        """Wait for the status and headers. A checkpoint."""
        await self._started.wait()

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Pieces of the body as they were sent."""
        while True:
            while self._chunks:
                yield self._chunks.pop(0)
            if self.complete:
                return
            await self._changed.wait()

    async def events(self) -> AsyncGenerator[str]:
        """Data of server-sent events; comments are left out.

        Whoever may stop before the end takes it with `contextlib.aclosing`.
        """
        buffer = b""
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                buffer += chunk
                while b"\n\n" in buffer:
                    event, _, buffer = buffer.partition(b"\n\n")
                    if event.startswith(b"data: "):
                        yield event[6:].decode()

    async def read(self) -> bytes:
        """The rest of the body."""
        return b"".join([chunk async for chunk in self.chunks()])

    def take(self, message: Event) -> None:
        """What the app sent."""
        if self.gone:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode().lower(): v.decode() for k, v in message["headers"]}
            self._started.set()
        elif message["type"] == "http.response.body":
            if message.get("body"):
                self._chunks.append(message["body"])
            self.complete = not message.get("more_body", False)
        self._wake()

    def end(self) -> None:
        """The app has returned."""
        self.complete = True
        self._started.set()
        self._wake()

    async def wait_gone(self) -> None:
        """Wait until the answer is complete or the client has left: the app's disconnect."""
        while not (self.gone or self.complete):
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class AsgiClient:
    """Calls an app as a server would.

    Args:
        app: An ASGI 3.0 app on trio.
        headers: Sent with every request.
        state: `scope["state"]`.
    """

    def __init__(
        self,
        app: AsgiApp,
        headers: dict[str, str] | None = None,
        state: dict[str, object] | None = None,
    ) -> None:
        self._app = app
        self._headers = headers or {}
        self._state = state or {}

    async def get(self, path: str, headers: dict[str, str] | None = None) -> HttpReply:
        """GET. A checkpoint."""
        return await self.request("GET", path, headers=headers)

    async def post(
        self, path: str, json: object = None, headers: dict[str, str] | None = None
    ) -> HttpReply:
        """POST a JSON body. A checkpoint."""
        content = jsonlib.dumps(json).encode()
        merged = {"content-type": "application/json", **(headers or {})}
        return await self.request("POST", path, content=content, headers=merged)

    async def request(
        self,
        method: str,
        path: str,
        *,
        content: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> HttpReply:
        """Any request, answered in one piece. A checkpoint."""
        async with self._open(method, path, content, headers or {}) as stream:
            body = await stream.read()
            return HttpReply(stream.status, stream.headers, body)

    @asynccontextmanager
    async def stream(
        self, path: str, json: object, headers: dict[str, str] | None = None
    ) -> AsyncGenerator[HttpStream]:
        """POST a JSON body and read the answer as it comes. Leaving the block disconnects."""
        content = jsonlib.dumps(json).encode()
        merged = {"content-type": "application/json", **(headers or {})}
        async with self._open("POST", path, content, merged) as stream:
            yield stream

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, content: bytes, headers: dict[str, str]
    ) -> AsyncGenerator[HttpStream]:
        stream = HttpStream()
        sent = {"host": "triolet.test", **self._headers, **headers}
        if method not in ("GET", "HEAD", "OPTIONS"):
            sent.setdefault("content-length", str(len(content)))
        scope: MutableMapping[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.1"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path.partition("?")[0],
            "raw_path": path.partition("?")[0].encode(),
            "query_string": path.partition("?")[2].encode(),
            "root_path": "",
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in sent.items()],
            "client": ("127.0.0.1", 1),
            "server": ("triolet.test", 80),
            "state": dict(self._state),
            "extensions": {},
        }
        body_sent = False

        async def receive() -> Event:
            nonlocal body_sent
            if not body_sent:
                body_sent = True
                return {"type": "http.request", "body": content, "more_body": False}
            await stream.wait_gone()
            return {"type": "http.disconnect"}

        async def send(message: Event) -> None:
            await trio.lowlevel.checkpoint()
            stream.take(message)

        async def run() -> None:
            try:
                await self._app(scope, receive, send)
            finally:
                stream.end()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await stream.wait_started()
            if stream.status == 0 and not stream.gone:
                raise InternalError("the app returned without an answer")
            yield stream
            stream.disconnect()
