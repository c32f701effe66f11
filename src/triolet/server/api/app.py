"""The API as one raw ASGI app on trio: gate, routing, and the life of one request.

The work of a request runs under a watcher of its client (`live.LiveRequest.run`); the answer,
or the end of it, is sent outside that scope, so that a disconnect which the server reports
after each answer cannot interrupt the sending itself.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial

import trio

from triolet.config import ServerConfig
from triolet.engine.client import EngineClient
from triolet.engine.offload import Offload, ThreadOffload
from triolet.errors import ClientStalled, ConfigError, NotServing, TrioletError
from triolet.protocol.json_body import clip
from triolet.server.api.asgi import Receive, Scope, Send
from triolet.server.api.call import Call, Services
from triolet.server.api.error_response import HttpRefused, Response
from triolet.server.api.exchange import CLOSE, ClientGone, Exchange
from triolet.server.api.gate import PUBLIC_PATHS, Caller, Cors, Hosts, Keys, client_label
from triolet.server.api.live import LiveRequest, LiveRequests
from triolet.server.api.observed import log_access
from triolet.server.api.table import BODILESS, Endpoint, find
from triolet.server.api.tracing import Tracing

QUIET_PATHS = PUBLIC_PATHS | {"/metrics", "/debug/tree"}
"""Asked for every few seconds by machines: their lines would hide the others."""

OFFLOAD_THREADS = 2
"""Parsing is pure Python: more threads would only fight over the interpreter."""


class Api:
    """The API over one engine.

    Args:
        engine: The engine, or None until `attach` brings it.
        config: Limits, keys and names; None takes the defaults.
        offload: Where slow work goes; None takes threads.
        clock: Unix time in seconds.

    Raises:
        ConfigError: The key file cannot be used.
    """

    def __init__(
        self,
        engine: EngineClient | None = None,
        config: ServerConfig | None = None,
        *,
        offload: Offload | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config or ServerConfig()
        self.services = Services(
            config=self.config,
            offload=offload or ThreadOffload(OFFLOAD_THREADS),
            live=LiveRequests(),
            created=int(clock()),
            clock=clock,
            engine=engine,
        )
        self._keys = Keys.of(self.config)
        self._cors = Cors(self.config.cors_allowed_origins)
        self._hosts = Hosts(self.config.allowed_hosts)
        self._tracing = Tracing(self.config.otlp_traces_endpoint, clock)

    def attach(self, engine: EngineClient) -> None:
        """The engine is there: serve it."""
        self.services.engine = engine

    def drain(self) -> None:
        """Take no new work; what runs goes on."""
        self.services.draining = True

    def end_all(self, reason: str) -> None:
        """End every request in progress with a 503 or, in mid-stream, an error event."""
        self.services.live.end_all(NotServing(reason, retry_after_s=1))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own what outlives its HTTP request: background responses. Runs until cancelled."""
        await self.services.responses.run(task_status=task_status)

    async def aclose(self) -> None:
        """Send the traces that are left. A checkpoint; takes a few seconds at most."""
        await self._tracing.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3.0. Refuses event loops other than trio."""
        if not trio.lowlevel.in_trio_run():
            raise ConfigError("triolet's API runs on trio: use hypercorn with its trio worker")
        match scope["type"]:
            case "http":
                await self._http(Exchange(scope, receive, send, self.config))
            case "lifespan":
                await _lifespan(receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1008})

    async def _http(self, exchange: Exchange) -> None:
        request_id = secrets.token_hex(16)
        label = client_label(exchange.headers)
        exchange.common_headers += [
            (b"x-request-id", (label or request_id).encode("ascii")),
            (b"x-triolet-request-id", request_id.encode("ascii")),
            (b"request-id", request_id.encode("ascii")),  # the name that Anthropic's clients read
            *self._cors.headers(exchange.headers),
            *(CLOSE if self.services.draining else ()),
        ]
        preflight = self._cors.preflight(exchange.method, exchange.headers)
        if preflight is not None:
            await exchange.respond(preflight)
            return
        try:
            caller = self._authenticate(exchange)
            endpoint, method, variables = _route(exchange)
            call = Call(self.services, exchange, caller, request_id, label, variables)
            if method == "POST" and endpoint.path not in BODILESS:
                exchange.check_json()
                call.body = await exchange.read_body()
        except ClientGone:
            return
        except TrioletError as error:
            self.services.http_metrics.refused(error.http_status, error.code)
            await exchange.respond_error(error)
            return
        await self._run(call, endpoint, method)

    async def _run(self, call: Call, endpoint: Endpoint, method: str) -> None:
        """Do the work of a request, answer it, and note what came of it. A checkpoint."""
        quiet = endpoint.path in QUIET_PATHS
        live = LiveRequest(call.request_id, call.caller.tenant, call.exchange.path)
        span = None if quiet else self._tracing.start(call, endpoint.path)
        with self.services.live.entered(live):
            outcome = await live.run(call.exchange, partial(endpoint.methods[method], call))
            await _send_outcome(call, outcome, gone=live.gone)
        elapsed_s = trio.current_time() - live.started_at
        error = outcome.code if isinstance(outcome, TrioletError) else None
        self._tracing.end(span, call, error=error, gone=live.gone)
        if not quiet:
            status = "left" if live.gone else str(call.exchange.status)
            self.services.http_metrics.answered(method, endpoint.path, status, elapsed_s)
        level = logging.DEBUG if quiet else logging.INFO
        log_access(call, endpoint.path, level, elapsed_s, error=error, gone=live.gone)

    def _authenticate(self, exchange: Exchange) -> Caller:
        if exchange.path in PUBLIC_PATHS:
            return Caller()
        self._hosts.check(exchange.headers)
        return self._keys.caller(exchange.headers)


async def _send_outcome(call: Call, outcome: Response | TrioletError | None, *, gone: bool) -> None:
    """Send what the work came to, or complete the stream it began."""
    exchange = call.exchange
    if gone:
        return
    if not exchange.started:
        assert outcome is not None, "a route that begins no stream answers"
        if isinstance(outcome, Response):
            await exchange.respond(outcome)
        else:
            await exchange.respond_error(outcome)
        return
    assert call.events is not None, "only a stream starts its response in the route"
    if isinstance(outcome, ClientStalled):
        call.events.abort()
    elif isinstance(outcome, TrioletError):
        await call.events.finish(call.error_event(outcome))
    else:
        await call.events.finish(b"")


def _route(exchange: Exchange) -> tuple[Endpoint, str, Mapping[str, str]]:
    found = find(exchange.path)
    if found is None:
        raise HttpRefused(
            404, f"there is no route {clip(exchange.path)} on this server", "route_not_found"
        )
    endpoint, variables = found
    method = "GET" if exchange.method == "HEAD" else exchange.method
    if method not in endpoint.methods:
        allowed = ", ".join(sorted(endpoint.methods))
        raise HttpRefused(
            405,
            f"{clip(exchange.method)} is not possible on {exchange.path[:100]}; use {allowed}",
            "method_not_allowed",
            ((b"allow", allowed.encode("ascii")),),
        )
    return endpoint, method, variables


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return
