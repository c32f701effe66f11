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
from triolet.server.api.gate import PUBLIC_PATHS, Caller, Cors, Keys, client_label
from triolet.server.api.live import LiveRequest, LiveRequests
from triolet.server.api.table import BODILESS, Endpoint, find
from triolet.telemetry.log import log_event

logger = logging.getLogger("triolet.server")

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
            await exchange.respond_error(error)
            return
        live = LiveRequest(request_id, caller.tenant, exchange.path)
        with self.services.live.entered(live):
            outcome = await live.run(exchange, partial(endpoint.methods[method], call))
            await _send_outcome(call, outcome, gone=live.gone)
        _log_access(call, endpoint, outcome, live)

    def _authenticate(self, exchange: Exchange) -> Caller:
        if exchange.path in PUBLIC_PATHS:
            return Caller()
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


def _log_access(
    call: Call, endpoint: Endpoint, outcome: Response | TrioletError | None, live: LiveRequest
) -> None:
    """One line per request, after its answer; probes are for debugging only."""
    log_event(
        logger,
        logging.DEBUG if endpoint.path in QUIET_PATHS else logging.INFO,
        "request_answered" if not live.gone else "client_left",
        request_id=call.request_id,
        label=call.label,
        tenant=call.caller.tenant,
        method=call.exchange.method,
        path=endpoint.path,
        status=call.exchange.status,
        error=outcome.code if isinstance(outcome, TrioletError) else None,
        elapsed_s=round(trio.current_time() - live.started_at, 4),
    )


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
