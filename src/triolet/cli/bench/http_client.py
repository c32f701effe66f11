"""A light client for OpenAI-compatible servers: h11 over trio, kept connections, SSE.

It reads what is measured and nothing else, so that its own CPU use (which is reported) stays
small beside the server's on one machine.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import attrs
import h11
import orjson
import trio

from triolet.cli.bench.records import RequestRecord
from triolet.cli.bench.workload import BenchRequest
from triolet.errors import ConfigError

RECEIVE_BYTES = 1 << 16
DONE = b"[DONE]"
ERROR_CHARS_MAX = 300
"""Of a server's error page in a record."""

Endpoint = Literal["completions", "chat"]


class HttpFailure(Exception):
    """The server did not answer as HTTP wants it, or not with 200."""


class EventReader:
    """Cuts the data lines out of a stream of server-sent events.

    The `data:` lines of OpenAI's streams are whole events; other fields are skipped.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; return the payloads that they complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


@attrs.frozen
class Answer:
    """A whole answer."""

    status: int
    body: bytes


class HttpClient:
    """Connections to one server, kept while they are of use.

    Args:
        base_url: "http(s)://host:port", with "/v1" at its end or without.
        api_key: Sent as a bearer token.

    Raises:
        ConfigError: It is no such URL.
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(
                f"url must be like http://127.0.0.1:8000, got {base_url!r}", param="url"
            )
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._host = url.hostname
        self._port = url.port or (443 if self._tls else 80)
        self._prefix = url.path.rstrip("/").removesuffix("/v1")
        self._headers = [("Host", f"{self._host}:{self._port}"), ("Accept", "*/*")]
        if api_key:
            self._headers.append(("Authorization", f"Bearer {api_key}"))
        self._idle: list[_Connection] = []

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        on_event: Callable[[bytes], None] | None = None,
    ) -> Answer:
        """Send a request and read the answer to its end. A checkpoint.

        Cancelled, the connection is closed: what was left of the answer is nobody's.

        Args:
            method: Of HTTP.
            path: Below the base URL.
            body: JSON.
            on_event: Called with the payload of each server-sent event, as it comes.

        Raises:
            HttpFailure: The connection broke, or what came is not HTTP.
        """
        head = [*self._headers, ("Content-Length", str(len(body)))]
        if body:
            head.append(("Content-Type", "application/json"))
        request = h11.Request(method=method, target=self._prefix + path, headers=head)
        while True:
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                answer = await connection.exchange(request, body, on_event)
            except _ClosedWhileIdle:
                continue  # the server had given the connection up: at most once for each kept one
            if connection.is_reusable:
                self._idle.append(connection)
            else:
                await trio.aclose_forcefully(connection.stream)
            return answer

    async def aclose(self) -> None:
        """Close the kept connections."""
        while self._idle:
            await trio.aclose_forcefully(self._idle.pop().stream)

    async def _connect(self) -> _Connection:
        try:
            if self._tls is None:
                tcp = await trio.open_tcp_stream(self._host, self._port)
                return _Connection(tcp)
            return _Connection(
                await trio.open_ssl_over_tcp_stream(
                    self._host, self._port, ssl_context=self._tls, https_compatible=True
                )
            )
        except OSError as error:
            raise HttpFailure(
                f"cannot connect to {self._host}:{self._port}: {error.strerror or error}"
            ) from error


class _ClosedWhileIdle(Exception):
    """A kept connection was closed before a byte of the answer."""


class _Connection:
    """One connection, one request at a time."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._h11 = h11.Connection(h11.CLIENT)
        self._num_answers = 0

    @property
    def is_reusable(self) -> bool:
        """Whether another request may follow."""
        return self._h11.our_state is h11.IDLE

    async def exchange(
        self, request: h11.Request, body: bytes, on_event: Callable[[bytes], None] | None
    ) -> Answer:
        """See `HttpClient.request`. On any failure the connection is closed."""
        data = b"".join(
            self._h11.send(event) or b""
            for event in (request, h11.Data(data=body), h11.EndOfMessage())
        )
        is_whole = False
        try:
            try:
                await self.stream.send_all(data)
                answer = await self._read(on_event)
            except trio.BrokenResourceError as error:
                if self._num_answers and self._h11.their_state is h11.SEND_RESPONSE:
                    raise _ClosedWhileIdle from error
                raise HttpFailure("the connection broke") from error
            except h11.RemoteProtocolError as error:
                raise HttpFailure(f"the answer is not HTTP: {error}") from error
            is_whole = True
        finally:
            if not is_whole:
                await trio.aclose_forcefully(self.stream)
        self._num_answers += 1
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
        return answer

    async def _read(self, on_event: Callable[[bytes], None] | None) -> Answer:
        status, body = 0, bytearray()
        events: EventReader | None = None
        while True:
            match await self._next_event():
                case h11.Response() as head:
                    status = head.status_code
                    kind = dict(head.headers).get(b"content-type", b"")
                    if on_event is not None and kind.startswith(b"text/event-stream"):
                        events = EventReader()
                case h11.Data() as piece if events is not None and on_event is not None:
                    for payload in events.feed(bytes(piece.data)):
                        on_event(payload)
                case h11.Data() as piece:
                    body += piece.data
                case h11.EndOfMessage():
                    return Answer(status, bytes(body))
                case _:
                    pass  # informational answers

    async def _next_event(self) -> object:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            data = bytes(await self.stream.receive_some(RECEIVE_BYTES))
            if not data and self._h11.their_state is h11.SEND_RESPONSE:
                raise trio.BrokenResourceError("closed before an answer")
            self._h11.receive_data(data)
        return event


@attrs.frozen(kw_only=True)
class HttpTarget:
    """An OpenAI-compatible server.

    Attributes:
        client: Connections to it.
        model: Name of the model.
        endpoint: Completions, or chat with the prompt as the user's message.
        as_token_ids: Send prompts as token ids (completions only).
        fields: Fields of every request body besides prompt and length.
        timeout_s: A request that takes longer has failed.
    """

    client: HttpClient
    model: str
    endpoint: Endpoint
    as_token_ids: bool
    fields: Mapping[str, Any]
    timeout_s: float

    async def ask(self, request: BenchRequest) -> RequestRecord:
        """See `Target.ask`."""
        path = "/v1/completions" if self.endpoint == "completions" else "/v1/chat/completions"
        reader = _AnswerReader(self.endpoint)
        body = orjson.dumps(self._body(request))
        start_s = trio.current_time()
        try:
            with trio.fail_after(self.timeout_s):
                answer = await self.client.request("POST", path, body, reader.take)
            reader.check(answer)
        except trio.TooSlowError:
            reader.error = f"no whole answer within {self.timeout_s:g} s"
        except HttpFailure as error:
            reader.error = str(error)
        return reader.record(start_s, trio.current_time(), request.max_tokens)

    def _body(self, request: BenchRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }
        if self.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": request.text}]
        elif self.as_token_ids:
            body["prompt"] = request.token_ids
        else:
            body["prompt"] = request.text
        return body


class _AnswerReader:
    """Takes the events of one answer."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._times_s: list[float] = []
        self._usage: dict[str, Any] | None = None
        self._is_done = False
        self.error: str | None = None

    def take(self, payload: bytes) -> None:
        """Take one event."""
        now_s = trio.current_time()
        if payload == DONE:
            self._is_done = True
            return
        try:
            event = orjson.loads(payload)
        except orjson.JSONDecodeError:
            self.error = f"an event is not JSON: {payload[:ERROR_CHARS_MAX]!r}"
            return
        if event.get("error") is not None:
            self.error = str(event["error"])[:ERROR_CHARS_MAX]
            return
        self._usage = event.get("usage") or self._usage
        for choice in event.get("choices") or ():
            self._is_done = self._is_done or bool(choice.get("finish_reason"))
            if self._has_text(choice):
                self._times_s.append(now_s)

    def _has_text(self, choice: Mapping[str, Any]) -> bool:
        if self._endpoint == "completions":
            return bool(choice.get("text"))
        delta = choice.get("delta") or {}
        return any(delta.get(kind) for kind in ("content", "reasoning_content", "reasoning"))

    def check(self, answer: Answer) -> None:
        """Look at the answer as a whole."""
        if answer.status != 200:
            text = answer.body[:ERROR_CHARS_MAX].decode(errors="replace")
            self.error = f"HTTP {answer.status}: {text}"
        elif self.error is None and not self._is_done:
            self.error = "the stream ended before the answer did"
        elif self.error is None and self._usage is None:
            self.error = "the stream had no usage: the server counts no tokens"

    def record(self, start_s: float, end_s: float, wanted_tokens: int) -> RequestRecord:
        """What happened."""
        usage = self._usage or {}
        details = usage.get("prompt_tokens_details") or {}
        return RequestRecord(
            start_s=start_s,
            end_s=end_s,
            piece_times_s=tuple(self._times_s),
            prompt_tokens=usage.get("prompt_tokens", 0),
            completion_tokens=usage.get("completion_tokens", 0),
            cached_tokens=details.get("cached_tokens"),
            wanted_tokens=wanted_tokens,
            error=self.error,
        )


async def first_model_name(client: HttpClient) -> str:
    """The name of the first model that a server lists. A checkpoint.

    Raises:
        ConfigError: It lists none, or there is no server.
    """
    try:
        answer = await client.request("GET", "/v1/models")
        name = orjson.loads(answer.body)["data"][0]["id"] if answer.status == 200 else None
    except HttpFailure as error:
        raise ConfigError(str(error), param="url") from error
    except (orjson.JSONDecodeError, LookupError, TypeError):
        name = None
    if not isinstance(name, str):
        raise ConfigError("the server lists no model; name one with --model", param="model")
    return name
