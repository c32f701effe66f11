"""What a route gets: one authenticated request, and the services behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

import attrs

from triolet.config import ServerConfig
from triolet.engine.client import EngineClient, Health
from triolet.engine.offload import Offload
from triolet.errors import EngineDead, NotServing, TrioletError
from triolet.protocol.error_object import error_event
from triolet.protocol.json_body import parse_object
from triolet.server.api.dialect import ModelDialect
from triolet.server.api.error_response import Response
from triolet.server.api.exchange import Exchange
from triolet.server.api.gate import Caller
from triolet.server.api.live import LiveRequests
from triolet.server.api.response_store import ResponseStore
from triolet.server.api.sse import EventWriter
from triolet.telemetry.http_metrics import HttpMetrics

R = TypeVar("R")

PARSE_INLINE_BYTES = 8 << 10
"""Parsing takes up to 0.3 us per byte: larger bodies go to a thread, for 0.1 ms more."""


@attrs.define
class Services:
    """What routes share; one per server.

    Attributes:
        config: The server's settings.
        offload: Where slow synchronous work goes.
        live: Requests in progress.
        engine: The engine, None while it is being loaded.
        draining: No new work is taken.
        created: Unix time in seconds when the server was made.
        clock: Unix time in seconds.
        tree: More for `/debug/tree`, from the server that owns the sockets.
        dialect: How the model writes, once it is known.
        responses: Responses that are kept, or made in the background.
        http_metrics: Counts requests.
    """

    config: ServerConfig
    offload: Offload
    live: LiveRequests
    created: int
    clock: Callable[[], float]
    engine: EngineClient | None = None
    draining: bool = False
    tree: Callable[[], Mapping[str, object]] | None = None
    dialect: ModelDialect | None = None
    responses: ResponseStore = attrs.field(factory=ResponseStore)
    http_metrics: HttpMetrics = attrs.field(factory=HttpMetrics)

    def health(self) -> Health:
        """State of the server as a whole."""
        if self.engine is None:
            return Health.STARTING
        state = self.engine.health
        if self.draining and state is Health.SERVING:
            return Health.DRAINING
        return state

    def serving_engine(self) -> EngineClient:
        """The engine, if it takes requests.

        Raises:
            NotServing: It is being loaded, or the server is draining.
            EngineDead: It has died.
        """
        if self.draining:
            raise NotServing("the server is shutting down", retry_after_s=1)
        if self.engine is None:
            raise NotServing("the model is being loaded", retry_after_s=5)
        if self.engine.health is Health.DEAD:
            raise EngineDead("the engine has died; the server must be restarted")
        return self.engine

    def loaded_engine(self) -> EngineClient:
        """The engine in any state.

        Raises:
            NotServing: It is being loaded.
        """
        if self.engine is None:
            raise NotServing("the model is being loaded", retry_after_s=5)
        return self.engine

    def model_names(self) -> tuple[str, ...]:
        """Names that the model answers to; the first is used in answers."""
        return self.config.served_model_name or (self.loaded_engine().facts.name,)


@attrs.define
class Figures:
    """What is known of a generating request at its end, for log and trace.

    Attributes:
        prompt_tokens: Of all prompts.
        completion_tokens: Of all outputs.
        first_output_s: Seconds from the job's start to its first output.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    first_output_s: float | None = None


@attrs.define
class Call:
    """One request on its way through a route.

    Attributes:
        services: See `Services`.
        exchange: The HTTP request and answer.
        caller: Whose it is.
        request_id: Our own id of it.
        label: The client's id of it, for logs.
        variables: Parts of the path, by name.
        body: The request body.
        events: The writer of a streamed answer, once a route has begun one.
        error_event: How a streamed answer ends that fails.
        figures: Filled while a job runs.
    """

    services: Services
    exchange: Exchange
    caller: Caller
    request_id: str
    label: str | None
    variables: Mapping[str, str]
    body: bytes = b""
    events: EventWriter | None = None
    error_event: Callable[[TrioletError], bytes] = error_event
    figures: Figures = attrs.field(factory=Figures)

    async def parse(self, read: Callable[[Mapping[str, object]], R]) -> R:
        """Read the JSON body, off the loop if it is large.

        Raises:
            InvalidRequest: It is not what `read` takes.
        """
        return await self.compute(partial(_parse, self.body, read))

    async def compute(self, work: Callable[[], R]) -> R:
        """Do what takes as long as the body is large, off the loop if it is large."""
        if len(self.body) <= PARSE_INLINE_BYTES:
            return work()
        return await self.services.offload.run(work)

    def open_events(self, buffer_bytes: int) -> EventWriter:
        """A writer for a streamed answer; the caller of the route ends the response."""
        config = self.services.config
        self.events = EventWriter(
            buffer_bytes, config.write_stall_timeout_s, config.sse_keep_alive_s, config.direct_sink
        )
        return self.events


Route = Callable[[Call], Awaitable[Response | None]]
"""A route answers, or returns None after it has sent the events of a stream."""


def _parse(body: bytes, read: Callable[[Mapping[str, object]], R]) -> R:
    return read(parse_object(body))
