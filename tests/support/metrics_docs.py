"""Writes docs/reference/metrics.md from the metrics themselves.

Run it after changing a metric: python tests/support/metrics_docs.py
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from triolet.telemetry.http_metrics import HttpMetrics
from triolet.telemetry.metrics import PREFIX, VLLM_NAMES, Metrics

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"

HEAD = """\
# Metrics

<!-- written by tests/support/metrics_docs.py; change the metrics instead -->

`GET /metrics` answers in Prometheus' text format, and needs a key where there are keys. Every
name begins with `triolet:`; what follows is vLLM's name wherever vLLM has the metric, and it counts
the same. With `--vllm-metrics` those marked "yes" below are also there as `vllm:...`, with vLLM's
label `engine="0"`, for dashboards and routers made for vLLM. To watch a server:
[monitor](../how_to/monitor.md).

For R requests of P prompt and M output tokens, one after another: `request_success_total` is R,
`prompt_tokens_total` R*P, `generation_tokens_total` R*M, `inter_token_latency_seconds_count`
R*(M-1), and `iteration_tokens_total` has R*M steps with R*(P+M) tokens (prompt tokens found in the
prefix cache are not computed, so not in it).
"""


def page() -> str:
    """The whole page."""
    engine, http = Metrics("demo"), HttpMetrics()
    return "\n".join(
        [
            HEAD,
            "## Engine\n",
            *_table(engine.registry),
            "## HTTP server\n",
            *_table(http.registry),
        ]
    )


def names() -> set[str]:
    """Every name of a sample."""
    out: set[str] = set()
    for registry in (Metrics("demo").registry, HttpMetrics().registry):
        for metric in _metrics(registry):
            kind, name = str(metric._type), str(metric._name)  # the library has no other way
            ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
            out |= {name + end for end in ends.get(kind, ("",))}
    return out


def _table(registry: CollectorRegistry) -> Iterable[str]:
    yield "| name after `triolet:` | kind | labels | what it says | vLLM has it |"
    yield "|---|---|---|---|---|"
    for metric in _metrics(registry):
        name = str(metric._name).removeprefix(PREFIX)
        shown = f"{name}_total" if metric._type == "counter" else name
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        vllm = "yes" if name in VLLM_NAMES else ""
        yield f"| `{shown}` | {metric._type} | {labels} | {metric._documentation} | {vllm} |"
    yield ""


def _metrics(registry: CollectorRegistry) -> list[MetricWrapperBase]:
    collectors = registry._collector_to_names
    return [metric for metric in collectors if isinstance(metric, MetricWrapperBase)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
