"""What happened to the requests of a benchmark, and the figures that follow."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

import attrs

PERCENTILES = (50, 90, 99)


@attrs.frozen(kw_only=True)
class RequestRecord:
    """One request, with times on one clock in seconds.

    Attributes:
        start_s: When it was sent.
        end_s: When its answer was complete.
        piece_times_s: When each piece of text came.
        prompt_tokens: As the server counted.
        completion_tokens: As the server counted.
        cached_tokens: Prompt tokens from its prefix cache, None if it does not say.
        wanted_tokens: Completion tokens asked for.
        error: What went wrong, None if nothing.
    """

    start_s: float
    end_s: float
    piece_times_s: tuple[float, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    wanted_tokens: int = 0
    error: str | None = None


@attrs.frozen
class CpuUse:
    """CPU used while something was measured, in cores (CPU seconds per second).

    Attributes:
        engine: By the engine or server that is measured, None if its process is not known.
        client: By the program that asks a server, None if it is the engine itself.
        others: By everybody else on this machine, None where that cannot be told.
    """

    engine: float | None = None
    client: float | None = None
    others: float | None = None


OTHERS_CORES_MAX = 0.1
"""Above this much CPU of other processes a figure is marked as unclean."""


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear between the neighbours, as numpy does; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def figures_of_load(records: Sequence[RequestRecord], cpu: CpuUse) -> dict[str, Any]:
    """The figures of one repetition.

    Args:
        records: Of all requests, at least one.
        cpu: Used meanwhile.

    Returns:
        Name -> number, milliseconds for what a request saw; absent where nothing was measured.
    """
    good = [record for record in records if record.error is None]
    wall_s = max(record.end_s for record in records) - min(record.start_s for record in records)
    figures = figures_of_totals(
        wall_s=wall_s,
        num_requests=len(good),
        prompt_tokens=sum(record.prompt_tokens for record in good),
        completion_tokens=sum(record.completion_tokens for record in good),
        cpu=cpu,
    )
    figures["failed"] = len(records) - len(good)
    figures["missing_tokens"] = sum(r.wanted_tokens - r.completion_tokens for r in good)
    cached = [record.cached_tokens for record in good if record.cached_tokens is not None]
    if cached:
        figures["cached_tokens"] = sum(cached)
    streamed = [record for record in good if record.piece_times_s]
    for name, seconds in {
        "ttft": [record.piece_times_s[0] - record.start_s for record in streamed],
        "itl": [gap for record in streamed for gap in _gaps(record.piece_times_s)],
        "tpot": [_seconds_per_token(r) for r in streamed if r.completion_tokens > 1],
        "latency": [record.end_s - record.start_s for record in good],
    }.items():
        for percent in PERCENTILES:
            value = percentile(seconds, percent)
            if value is not None:
                figures[f"{name}_ms_p{percent}"] = value * 1000
    return figures


def figures_of_totals(
    *,
    wall_s: float,
    num_requests: int,
    prompt_tokens: int,
    completion_tokens: int,
    cpu: CpuUse,
) -> dict[str, Any]:
    """The figures that need no times of single requests; see `figures_of_load`."""
    wall_s = max(wall_s, 1e-9)
    figures: dict[str, Any] = {
        "wall_s": wall_s,
        "requests_per_s": num_requests / wall_s,
        "output_tokens_per_s": completion_tokens / wall_s,
        "total_tokens_per_s": (prompt_tokens + completion_tokens) / wall_s,
        "requests": num_requests,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
    }
    if cpu.client is not None:
        figures["client_cores"] = cpu.client
    if cpu.engine is not None:
        figures["engine_cores"] = cpu.engine
    if cpu.engine is not None and completion_tokens:
        figures["cpu_ms_per_output_token"] = cpu.engine * wall_s / completion_tokens * 1000
    if cpu.others is not None:
        figures["other_cores"] = cpu.others
        figures["clean"] = cpu.others <= OTHERS_CORES_MAX
    return figures


def medians(repetitions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure; a row of them is clean, or whole, only if each part is."""
    result: dict[str, Any] = {}
    for name, value in repetitions[0].items():
        column = [figures[name] for figures in repetitions if name in figures]
        if isinstance(value, bool):
            result[name] = all(column)
        elif name in ("failed", "missing_tokens"):
            result[name] = max(column)
        else:
            result[name] = statistics.median(column)
    return result


def _gaps(times: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def _seconds_per_token(record: RequestRecord) -> float:
    """Seconds per token after the first: pieces can hold several tokens."""
    spent = record.piece_times_s[-1] - record.piece_times_s[0]
    return spent / (record.completion_tokens - 1)
