"""Prometheus metrics of the HTTP server, in a registry of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from triolet.telemetry.metrics import LATENCY_BUCKETS, PREFIX


class HttpMetrics:
    """Requests by route; paths are those of the routing table, so there are few."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            PREFIX + "http_requests",
            "HTTP requests that were answered or left, by route and status",
            ["method", "path", "status"],
            registry=self.registry,
        )
        self._refused = Counter(
            PREFIX + "http_requests_refused",
            "HTTP requests that were refused before they reached a route",
            ["status", "code"],
            registry=self.registry,
        )
        self._duration = Histogram(
            PREFIX + "http_request_duration_seconds",
            "Request read to answer sent",
            ["method", "path"],
            registry=self.registry,
            buckets=LATENCY_BUCKETS,
        )

    def refused(self, status: int, code: str) -> None:
        """Count a request that was refused before its route: no key, no such path, too large."""
        self._refused.labels(str(status), code).inc()

    def answered(self, method: str, path: str, status: str, elapsed_s: float) -> None:
        """Count a request. `status` is that of the answer, or "left"."""
        self._requests.labels(method, path, status).inc()
        self._duration.labels(method, path).observe(elapsed_s)

    def exposition(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)
