"""Prometheus metrics of one engine, in a registry of its own.

Names follow vLLM's after the prefix, and so does what they count, so that dashboards need no
more than the prefix changed; `with_vllm_names` changes even that. For R requests of P prompt
and M output tokens, one after another: `request_success_total` R, `prompt_tokens_total` R*P,
`generation_tokens_total` R*M, `inter_token_latency_seconds_count` R*(M-1),
`iteration_tokens_total` R*M steps with R*(P+M) tokens.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

PREFIX = "triolet:"
VLLM_PREFIX = "vllm:"

LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 600,
)  # fmt: skip
TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
COUNT_BUCKETS = (1, 2, 5, 10, 20, 50, 100)

VLLM_NAMES = frozenset(
    {
        "admission_rejections",
        "cache_config_info",
        "e2e_request_latency_seconds",
        "generation_tokens",
        "inter_token_latency_seconds",
        "iteration_tokens_total",
        "kv_cache_usage_perc",
        "num_preemptions",
        "num_requests_running",
        "num_requests_waiting",
        "prefix_cache_hits",
        "prefix_cache_queries",
        "prompt_tokens",
        "prompt_tokens_cached",
        "request_decode_time_seconds",
        "request_generation_tokens",
        "request_inference_time_seconds",
        "request_params_max_tokens",
        "request_params_n",
        "request_prefill_time_seconds",
        "request_prompt_tokens",
        "request_queue_time_seconds",
        "request_success",
        "request_time_per_output_token_seconds",
        "time_to_first_token_seconds",
    }
)
"""Metrics that vLLM 0.33 has too, with the same meaning; without prefix and `_total`."""

SAMPLE_SUFFIXES = ("_total", "_bucket", "_count", "_sum")


class Total:
    """A counter whose value is counted elsewhere."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._value = 0

    def reach(self, value: int) -> None:
        """It is so much now; never less than before."""
        assert value >= self._value, "a total does not shrink"
        self._counter.inc(value - self._value)
        self._value = value


class Metrics:
    """Counters, gauges and histograms, with units in their names.

    Args:
        model: Value of the label `model_name`.
    """

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model}
        self._make_gauges()
        self._make_counters()
        self._make_histograms()

    def _make_gauges(self) -> None:
        gauge = self._gauge
        self.requests_running = gauge("num_requests_running", "Requests in the running set")
        self.requests_waiting = gauge("num_requests_waiting", "Requests that wait for a place")
        self.requests_live = gauge("num_requests_live", "Requests whose scope is open")
        self.kv_blocks_used = gauge("kv_cache_blocks_used", "KV blocks held by sequences")
        self.kv_blocks_total = gauge("kv_cache_blocks_total", "KV blocks there are")
        self.kv_usage = gauge("kv_cache_usage_perc", "Share of KV blocks held, 0 to 1")
        self._cache_config = Gauge(
            PREFIX + "cache_config_info",
            "How the KV cache is made; the value is 1",
            ["model_name", "block_size", "num_gpu_blocks", "enable_prefix_caching"],
            registry=self.registry,
        )

    def _make_counters(self) -> None:
        counter = self._counter
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of started requests")
        self.prompt_tokens_cached = counter(
            "prompt_tokens_cached", "Prompt tokens found in the prefix cache"
        )
        self.generation_tokens = counter("generation_tokens", "Tokens delivered")
        self.preemptions = Total(counter("num_preemptions", "Preemptions"))
        self.prefix_queries = Total(
            counter("prefix_cache_queries", "Tokens looked for in the prefix cache")
        )
        self.prefix_hits = Total(counter("prefix_cache_hits", "Tokens found in the prefix cache"))
        self.results_dropped = Total(
            counter("results_dropped", "Results for sequences that had ended")
        )
        self.runner_restarts = Total(counter("runner_restarts", "Runner restarts"))
        self._success = Counter(
            PREFIX + "request_success",
            "Requests by finish reason; abort and error for those that did not finish",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self._ended = Counter(
            PREFIX + "request_ended",
            "Requests by how and why they ended",
            ["model_name", "state", "cause"],
            registry=self.registry,
        )
        self._refused = Counter(
            PREFIX + "admission_rejections",
            "Requests refused at admission, by code",
            ["model_name", "reason"],
            registry=self.registry,
        )

    def _make_histograms(self) -> None:
        time, tokens = LATENCY_BUCKETS, TOKEN_BUCKETS
        histogram = self._histogram
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "Arrival to first token", time
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Between two tokens of one output", time
        )
        self.e2e_latency = histogram(
            "e2e_request_latency_seconds", "Arrival to the end of the request", time
        )
        self.queue_time = histogram(
            "request_queue_time_seconds", "Arrival to first place in a step", time
        )
        self.inference_time = histogram(
            "request_inference_time_seconds", "First place in a step to last token", time
        )
        self.prefill_time = histogram(
            "request_prefill_time_seconds", "First place in a step to first token", time
        )
        self.decode_time = histogram(
            "request_decode_time_seconds", "First token to last token", time
        )
        self.time_per_output_token = histogram(
            "request_time_per_output_token_seconds",
            "First to last token, for each token after the first",
            time,
        )
        self.request_prompt_tokens = histogram(
            "request_prompt_tokens", "Prompt tokens per request", tokens
        )
        self.request_generation_tokens = histogram(
            "request_generation_tokens", "Tokens generated per request", tokens
        )
        self.request_params_max_tokens = histogram(
            "request_params_max_tokens", "max_tokens of requests, as cut to the context", tokens
        )
        self.request_params_n = histogram("request_params_n", "n of requests", COUNT_BUCKETS)
        self.iteration_tokens = histogram(
            "iteration_tokens_total", "Prompt tokens computed and tokens sampled per step", tokens
        )

    def describe_cache(self, block_size: int, num_blocks: int, *, prefix_caching: bool) -> None:
        """Say how the KV cache is made."""
        self._cache_config.labels(
            block_size=str(block_size),
            num_gpu_blocks=str(num_blocks),
            enable_prefix_caching=str(prefix_caching),
            **self._labels,
        ).set(1)

    def request_ended(self, state: str, cause: str) -> None:
        """Count the end of a request."""
        self._ended.labels(state=state, cause=cause, **self._labels).inc()

    def request_succeeded(self, finished_reason: str) -> None:
        """Count the end of a request as vLLM counts it."""
        self._success.labels(finished_reason=finished_reason, **self._labels).inc()

    def request_refused(self, reason: str) -> None:
        """Count a refusal."""
        self._refused.labels(reason=reason, **self._labels).inc()

    def exposition(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(PREFIX + name, text, ["model_name"], registry=self.registry).labels(
            **self._labels
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(PREFIX + name, text, ["model_name"], registry=self.registry).labels(
            **self._labels
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            PREFIX + name, text, ["model_name"], registry=self.registry, buckets=buckets
        ).labels(**self._labels)


def with_vllm_names(exposition: bytes) -> bytes:
    """An exposition with every metric that vLLM has repeated under vLLM's name.

    vLLM's label `engine`, the number of the replica, is "0": there is one.

    Args:
        exposition: Prometheus text format, as from `Metrics.exposition`.
    """
    added: list[str] = []
    for line in exposition.decode().splitlines():
        head, prefix, rest = line.partition(PREFIX)
        if not prefix or head not in ("", "# HELP ", "# TYPE "):
            continue
        name, brace, _ = rest.partition(" ")[0].partition("{")
        if _family(name) not in VLLM_NAMES:
            continue
        if head:
            added.append(f"{head}{VLLM_PREFIX}{rest}")
        else:
            rest = rest.removeprefix(name)
            others = f",{rest[1:]}" if brace else f"}}{rest}"
            added.append(f'{VLLM_PREFIX}{name}{{engine="0"{others}')
    return exposition + "".join(f"{line}\n" for line in added).encode()


def _family(name: str) -> str:
    """The name of a metric without what its kind or its samples add to it."""
    if name in VLLM_NAMES:
        return name
    for suffix in SAMPLE_SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name
