"""Requests as spans, if traces are wanted."""

from __future__ import annotations

from collections.abc import Callable

import trio

import triolet
from triolet.server.api.call import Call
from triolet.telemetry.tracing import EXPORT_TIMEOUT_S, RequestSpan, Tracer, open_tracer

SERVICE = "triolet"


class Tracing:
    """Starts and ends the span of each request; without a tracer it does nothing.

    Args:
        endpoint: Where spans are sent; None sends none.
        clock: Unix time in seconds.

    Raises:
        ConfigError: The endpoint cannot be used.
    """

    def __init__(self, endpoint: str | None, clock: Callable[[], float]) -> None:
        self.tracer: Tracer | None = None
        self._clock = clock
        if endpoint is not None:
            self.tracer = open_tracer(endpoint, SERVICE, triolet.__version__)

    def start(self, call: Call, route: str) -> tuple[RequestSpan, float] | None:
        """Start the span of a request."""
        if self.tracer is None:
            return None
        exchange = call.exchange
        attributes: dict[str, str | int | float | bool] = {
            "http.request.method": exchange.method,
            "http.route": route,
            "gen_ai.provider.name": SERVICE,
            "gen_ai.request.id": call.request_id,
        }
        if call.label is not None:
            attributes["triolet.label"] = call.label
        if call.caller.tenant is not None:
            attributes["triolet.tenant"] = call.caller.tenant
        span = self.tracer.start(f"{exchange.method} {route}", exchange.headers, attributes)
        return span, self._clock()

    def end(
        self, span: tuple[RequestSpan, float] | None, call: Call, *, error: str | None, gone: bool
    ) -> None:
        """End it, with what is known now."""
        if span is None:
            return
        own, started_at = span
        figures, status = call.figures, call.exchange.status
        if figures.first_output_s is not None:
            own.event("first_output", int((started_at + figures.first_output_s) * 1e9))
        own.end(
            {
                "http.response.status_code": status or None,
                "gen_ai.usage.input_tokens": figures.prompt_tokens,
                "gen_ai.usage.output_tokens": figures.completion_tokens,
                "gen_ai.server.time_to_first_token": figures.first_output_s,
                "error.type": "client_left" if gone else error,
            },
            # A fault of the client is no error of the server's span (HTTP conventions).
            error if status >= 500 else None,
        )

    async def aclose(self) -> None:
        """Send what is left. A checkpoint; cancelled, it is left to a thread."""
        if self.tracer is None:
            await trio.lowlevel.checkpoint()
            return
        with trio.move_on_after(2 * EXPORT_TIMEOUT_S):
            await trio.to_thread.run_sync(self.tracer.close, abandon_on_cancel=True)
