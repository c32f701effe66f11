"""OpenTelemetry traces, one span per request; needs the extra `triolet[otel]`.

The provider belongs to one server: nothing global is set, so two servers in one process do not
mix, and a program that traces itself keeps its own. A `traceparent` of the client becomes the
parent of the span. Names of attributes: OpenTelemetry semantic conventions for HTTP and for
generative AI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from triolet.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

EXPORT_TIMEOUT_S = 5.0
"""How long a collector that does not answer may hold up one export, and the end of the server."""

Value = str | int | float | bool


class RequestSpan:
    """The span of one request."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def event(self, name: str, at_ns: int) -> None:
        """Something happened at this Unix time in nanoseconds."""
        self._span.add_event(name, timestamp=at_ns)

    def end(self, attributes: Mapping[str, Value | None], error: str | None = None) -> None:
        """The request has ended. Attributes that are None are left out."""
        from opentelemetry.trace import Status, StatusCode

        for name, value in attributes.items():
            if value is not None:
                self._span.set_attribute(name, value)
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()


class Tracer:
    """Starts spans and sends them, from a thread of its own.

    Args:
        exporter: Where finished spans go.
        service: Value of `service.name`.
        version: Value of `service.version`.
    """

    def __init__(self, exporter: SpanExporter, service: str, version: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({"service.name": service, "service.version": version})
        self._provider: TracerProvider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, export_timeout_millis=EXPORT_TIMEOUT_S * 1000)
        )
        self._tracer = self._provider.get_tracer("triolet", version)
        self._propagator = TraceContextTextMapPropagator()

    def start(
        self, name: str, headers: Mapping[str, str], attributes: Mapping[str, Value]
    ) -> RequestSpan:
        """Start the span of a request; 30 microseconds.

        Args:
            name: Method and route.
            headers: Of the request, in lower case.
            attributes: Known from the start.
        """
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        parent = self._propagator.extract(headers, context=Context())
        span = self._tracer.start_span(
            name, context=parent, kind=SpanKind.SERVER, attributes=dict(attributes)
        )
        return RequestSpan(span)

    def close(self) -> None:
        """Send what is left and end the thread. Blocks, up to the timeout of an export."""
        self._provider.shutdown()


def open_tracer(endpoint: str, service: str, version: str) -> Tracer:
    """A tracer that sends OTLP over HTTP.

    Args:
        endpoint: URL of the collector, with its path.
        service: Value of `service.name`.
        version: Value of `service.version`.

    Raises:
        ConfigError: OpenTelemetry is not installed, or the URL is none.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigError(
            "otlp_traces_endpoint must be a URL, such as http://localhost:4318/v1/traces",
            param="otlp_traces_endpoint",
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(
            "otlp_traces_endpoint needs OpenTelemetry: pip install 'triolet[otel]'",
            param="otlp_traces_endpoint",
        ) from error
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
    return Tracer(exporter, service, version)
