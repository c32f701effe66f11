"""The text that Prometheus reads, under our names and under vLLM's."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from triolet.telemetry.metrics import VLLM_NAMES, Metrics, with_vllm_names


def used_metrics() -> Metrics:
    metrics = Metrics('a "quoted" model')
    metrics.request_succeeded("stop")
    metrics.request_refused("queue_full")
    metrics.request_ended("finished", "finished")
    metrics.describe_cache(16, 100, prefix_caching=True)
    metrics.iteration_tokens.observe(7)
    metrics.preemptions.reach(3)
    metrics.preemptions.reach(5)
    return metrics


def samples(exposition: bytes, prefix: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Name without prefix and labels -> value, of one prefix; `engine` must be "0"."""
    out: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(exposition.decode()):
        for sample in family.samples:
            if sample.name.startswith(prefix) and not sample.name.endswith("_created"):
                labels = dict(sample.labels)
                assert labels.pop("engine", "0") == "0"
                out[sample.name.removeprefix(prefix), frozenset(labels.items())] = sample.value
    return out


def test_every_metric_of_vllm_has_the_same_samples_under_its_name() -> None:
    exposition = with_vllm_names(used_metrics().exposition())
    ours, theirs = samples(exposition, "triolet:"), samples(exposition, "vllm:")
    assert theirs.items() <= ours.items()
    only_ours = {name for name, _ in ours.keys() - theirs.keys()}
    assert only_ours == {
        "kv_cache_blocks_total",
        "kv_cache_blocks_used",
        "num_requests_live",
        "request_ended_total",
        "results_dropped_total",
        "runner_restarts_total",
    }
    families = {family.name for family in text_string_to_metric_families(exposition.decode())}
    assert {f"vllm:{name}" for name in VLLM_NAMES} <= families


def test_without_the_option_nothing_has_another_prefix() -> None:
    assert b"vllm" not in used_metrics().exposition()


def test_samples_without_labels_and_other_metrics_pass() -> None:
    text = b"triolet:num_requests_running 2\nother_total 1\n"
    assert with_vllm_names(text) == text + b'vllm:num_requests_running{engine="0"} 2\n'


def test_a_total_counts_what_was_counted_elsewhere() -> None:
    text = used_metrics().exposition().decode()
    assert 'triolet:num_preemptions_total{model_name="a \\"quoted\\" model"} 5.0' in text
    assert "# TYPE triolet:num_preemptions_total counter" in text
