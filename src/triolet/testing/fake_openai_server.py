"""A small OpenAI-compatible server that misbehaves on demand, for tests of other people's clients.

    async with open_fake_openai_server() as server:
        server.next_faults += [RateLimit(retry_after_s=0.1), DieMidStream(after_chunks=2)]
        client = openai.AsyncOpenAI(base_url=server.url, api_key="any")
        ...                                   # the third request is answered properly
        assert len(server.requests) == 3

It listens on a free port of the loopback interface and answers `/v1/models`,
`/v1/chat/completions` and `/v1/completions`, whole or as a stream, always with the same text.
It uses real sockets and real time: a virtual clock would jump over the answers.
"""

from __future__ import annotations

import json
import socket
import struct
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import h11
import trio

from triolet.testing.server_faults import (
    DieMidStream,
    ErrorEvent,
    ErrorStatus,
    MalformedEvent,
    RateLimit,
    ServerFault,
    SlowStart,
    Stall,
    Truncate,
)

BODY_BYTES_MAX = 1 << 22
"""Longest request that is read: a test has no use for more."""
RECEIVE_BYTES = 1 << 16
JSON_TYPE = "application/json"
SSE_TYPE = "text/event-stream"


@attrs.frozen
class ReceivedRequest:
    """What a client sent.

    Attributes:
        method: Such as "POST".
        path: Without the query.
        headers: Names in lower case.
        body: Parsed JSON, or None if there was none.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@attrs.define
class FakeOpenAIServer:
    """A running server.

    Attributes:
        url: For `base_url` of a client: it ends in "/v1".
        pieces: The text of every answer, in the pieces in which it is streamed.
        model: The model it serves.
        next_faults: One for each of the next requests; None treats one well.
        requests: Everything that came, in order.
    """

    url: str
    pieces: tuple[str, ...]
    model: str
    next_faults: deque[ServerFault | None] = attrs.field(factory=deque["ServerFault | None"])
    requests: list[ReceivedRequest] = attrs.field(factory=list[ReceivedRequest])

    @property
    def text(self) -> str:
        """The text of every answer that is not cut short."""
        return "".join(self.pieces)


@asynccontextmanager
async def open_fake_openai_server(
    *,
    pieces: tuple[str, ...] = ("Hello", ",", " world", "!"),
    model: str = "fake",
    chunk_s: float = 0.0,
) -> AsyncGenerator[FakeOpenAIServer]:
    """Serve until the block is left; then every connection is closed.

    Args:
        pieces: The text of every answer, in the pieces in which it is streamed.
        model: The name of the model.
        chunk_s: Pause before each piece.

    Yields:
        The server, listening.
    """
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        server = FakeOpenAIServer(f"http://127.0.0.1:{port}/v1", pieces, model)
        handler = partial(_serve_connection, server, chunk_s)
        nursery.start_soon(partial(trio.serve_listeners, handler, [listener]))
        try:
            yield server
        finally:
            nursery.cancel_scope.cancel()


class _Reset(Exception):
    """The connection is to be reset, not closed."""


async def _serve_connection(
    server: FakeOpenAIServer, chunk_s: float, stream: trio.SocketStream
) -> None:
    """Answer one request after the other until either side has had enough."""
    connection = _Connection(stream)
    try:
        async with stream:
            try:
                while (request := await connection.receive()) is not None:
                    server.requests.append(request)
                    await _Answer(server, connection, chunk_s).send(request)
                    if not connection.start_next():
                        return
            except _Reset:
                # Zero seconds of lingering makes the kernel send RST.
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except (trio.BrokenResourceError, h11.RemoteProtocolError):
        return  # the client left, or speaks no HTTP


class _Connection:
    """HTTP/1.1 over one socket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER)

    async def receive(self) -> ReceivedRequest | None:
        """The next request with its body; None when the client has closed."""
        head: h11.Request | None = None
        body = b""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._stream.receive_some(RECEIVE_BYTES))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > BODY_BYTES_MAX:
                    raise _Reset
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                headers = {name.decode().lower(): value.decode() for name, value in head.headers}
                path = head.target.decode().partition("?")[0]
                return ReceivedRequest(head.method.decode(), path, headers, _parse(body))
            else:
                return None

    async def start(self, status: int, content_type: str, *headers: tuple[str, str]) -> None:
        """Send the status and the headers; the body comes in chunks."""
        fields = [("content-type", content_type), ("transfer-encoding", "chunked"), *headers]
        encoded = [(name.encode(), value.encode()) for name, value in fields]
        await self._send(h11.Response(status_code=status, headers=encoded))

    async def send(self, data: bytes) -> None:
        """Send a piece of the body."""
        await self._send(h11.Data(data=data))

    async def end(self) -> None:
        """End the body."""
        await self._send(h11.EndOfMessage())

    def start_next(self) -> bool:
        """Make ready for the next request; False if there can be none."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            await self._stream.send_all(data)


@attrs.frozen
class _Answer:
    """Answers one request."""

    server: FakeOpenAIServer
    connection: _Connection
    chunk_s: float

    async def send(self, request: ReceivedRequest) -> None:
        """Answer it, or mistreat it."""
        if request.path == "/v1/models":
            models = {"object": "list", "data": [{"id": self.server.model, "object": "model"}]}
            await self._json(200, models)
            return
        if request.path not in ("/v1/chat/completions", "/v1/completions"):
            await self._error(404, f"no such path: {request.path}")
            return
        if not isinstance(request.body, dict):
            await self._error(400, "the body is no JSON object")
            return
        faults = self.server.next_faults
        await self._complete(request, faults.popleft() if faults else None)

    async def _complete(self, request: ReceivedRequest, fault: ServerFault | None) -> None:
        match fault:
            case RateLimit():
                wait_s = fault.retry_after_s
                headers = [] if wait_s is None else [("retry-after", f"{wait_s:g}")]
                await self._error(429, "too many requests", *headers)
                return
            case ErrorStatus():
                await self._error(fault.status, fault.message)
                return
            case SlowStart():
                await trio.sleep(fault.seconds)
            case _:
                pass
        is_chat = request.path.endswith("/chat/completions")
        if request.body.get("stream"):
            await self._stream(is_chat, fault)
        else:
            await self._whole(is_chat, fault)

    async def _stream(self, is_chat: bool, fault: ServerFault | None) -> None:
        await self.connection.start(200, SSE_TYPE)
        for number, piece in enumerate(self.server.pieces):
            if await self._mistreat(number, fault):
                return
            await trio.sleep(self.chunk_s)
            await self._event(self._chunk(is_chat, piece, None))
        if await self._mistreat(len(self.server.pieces), fault):
            return
        await self._event(self._chunk(is_chat, "", "stop"))
        await self.connection.send(b"data: [DONE]\n\n")
        await self.connection.end()

    async def _mistreat(self, chunks_sent: int, fault: ServerFault | None) -> bool:
        """Do what a fault does at this place of a stream; True if that ended it."""
        if fault is None or getattr(fault, "after_chunks", None) != chunks_sent:
            return False
        match fault:
            case Truncate():
                await self.connection.end()
            case DieMidStream():
                raise _Reset
            case ErrorEvent():
                await self._event(_error_body(500, fault.message))
                await self.connection.end()
            case Stall():
                await trio.sleep(fault.seconds)
                return False
            case MalformedEvent():
                await self.connection.send(b'data: {"id": "fake-0", "choices": [\n\n')
                return False
            case _:
                return False
        return True

    async def _whole(self, is_chat: bool, fault: ServerFault | None) -> None:
        body = json.dumps(self._body(is_chat)).encode()
        await trio.sleep(self.chunk_s * len(self.server.pieces))
        await self.connection.start(200, JSON_TYPE)
        half = len(body) // 2
        await self.connection.send(body[:half])
        match fault:
            case Truncate():
                await self.connection.end()
                return
            case DieMidStream() | ErrorEvent():
                raise _Reset
            case Stall():
                await trio.sleep(fault.seconds)
            case MalformedEvent():
                await self.connection.send(b"\0")
            case _:
                pass
        await self.connection.send(body[half:])
        await self.connection.end()

    async def _event(self, body: dict[str, object]) -> None:
        await self.connection.send(b"data: " + json.dumps(body).encode() + b"\n\n")

    async def _json(self, status: int, body: object, *headers: tuple[str, str]) -> None:
        await self.connection.start(status, JSON_TYPE, *headers)
        await self.connection.send(json.dumps(body).encode())
        await self.connection.end()

    async def _error(self, status: int, message: str, *headers: tuple[str, str]) -> None:
        await self._json(status, _error_body(status, message), *headers)

    def _chunk(self, is_chat: bool, piece: str, finish_reason: str | None) -> dict[str, object]:
        choice: dict[str, object] = {"index": 0, "finish_reason": finish_reason}
        if is_chat:
            choice["delta"] = {"role": "assistant", "content": piece} if piece else {}
        else:
            choice["text"] = piece
        return self._envelope("chat.completion.chunk" if is_chat else "text_completion", choice)

    def _body(self, is_chat: bool) -> dict[str, object]:
        choice: dict[str, object] = {"index": 0, "finish_reason": "stop"}
        if is_chat:
            choice["message"] = {"role": "assistant", "content": self.server.text}
        else:
            choice["text"] = self.server.text
        body = self._envelope("chat.completion" if is_chat else "text_completion", choice)
        tokens = len(self.server.pieces)
        body["usage"] = {
            "prompt_tokens": 1,
            "completion_tokens": tokens,
            "total_tokens": 1 + tokens,
        }
        return body

    def _envelope(self, kind: str, choice: dict[str, object]) -> dict[str, object]:
        number = len(self.server.requests)
        return {
            "id": f"fake-{number}",
            "object": kind,
            "created": 0,
            "model": self.server.model,
            "choices": [choice],
        }


def _error_body(status: int, message: str) -> dict[str, object]:
    kind = "rate_limit_error" if status == 429 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": str(status)}}


def _parse(body: bytes) -> Any:  # noqa: ANN401  whatever JSON the client sent
    try:
        return json.loads(body) if body else None
    except ValueError:
        return None
