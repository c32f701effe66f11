"""Prometheus metrics of one engine, in a registry of its own; names follow vLLM's suffixes."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 600,
)  # fmt: skip
TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)


class Metrics:
    """Counters, gauges and histograms, with units in their names.

    Args:
        model: Value of the label `model_name`.
    """

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model}

        self.requests_running = self._gauge("num_requests_running", "Requests in the running set")
        self.requests_waiting = self._gauge(
            "num_requests_waiting", "Requests that wait for a place"
        )
        self.requests_live = self._gauge("num_requests_live", "Requests whose scope is open")
        self.kv_blocks_used = self._gauge("kv_cache_blocks_used", "KV blocks held by sequences")
        self.kv_blocks_total = self._gauge("kv_cache_blocks_total", "KV blocks there are")
        self.kv_usage = self._gauge("kv_cache_usage_perc", "Share of KV blocks held, 0 to 1")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of started requests")
        self.prompt_tokens_cached = self._counter(
            "prompt_tokens_cached", "Prompt tokens found in the prefix cache"
        )
        self.generation_tokens = self._counter("generation_tokens", "Tokens delivered")
        self.preemptions = self._gauge("num_preemptions_total", "Preemptions so far")
        self.results_dropped = self._gauge(
            "results_dropped_total", "Results for sequences that had ended, so far"
        )
        self.runner_restarts = self._gauge("runner_restarts_total", "Runner restarts so far")
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token", LATENCY_BUCKETS
        )
        self.inter_token_latency = self._histogram(
            "inter_token_latency_seconds", "Between two deliveries of one output", LATENCY_BUCKETS
        )
        self.e2e_latency = self._histogram(
            "e2e_request_latency_seconds", "Arrival to the end of the request", LATENCY_BUCKETS
        )
        self.queue_time = self._histogram(
            "request_queue_time_seconds", "Arrival to first place in a step", LATENCY_BUCKETS
        )
        self.request_prompt_tokens = self._histogram(
            "request_prompt_tokens", "Prompt tokens per request", TOKEN_BUCKETS
        )
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Tokens generated per request", TOKEN_BUCKETS
        )
        self._ended = Counter(
            "triolet:request_ended",
            "Requests by how and why they ended",
            ["model_name", "state", "cause"],
            registry=self.registry,
        )
        self._refused = Counter(
            "triolet:admission_rejections",
            "Requests refused at admission, by code",
            ["model_name", "reason"],
            registry=self.registry,
        )

    def request_ended(self, state: str, cause: str) -> None:
        """Count the end of a request."""
        self._ended.labels(state=state, cause=cause, **self._labels).inc()

    def request_refused(self, reason: str) -> None:
        """Count a refusal."""
        self._refused.labels(reason=reason, **self._labels).inc()

    def exposition(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"triolet:{name}", text, ["model_name"], registry=self.registry).labels(
            **self._labels
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"triolet:{name}", text, ["model_name"], registry=self.registry).labels(
            **self._labels
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"triolet:{name}", text, ["model_name"], registry=self.registry, buckets=buckets
        ).labels(**self._labels)
