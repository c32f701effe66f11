"""How the figures of a benchmark are shown: a table for people, JSON lines for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from triolet.cli.bench.records import medians

TITLES = {
    "output_tokens_per_s": "out tok/s",
    "total_tokens_per_s": "all tok/s",
    "requests_per_s": "req/s",
    "ttft_ms_p50": "TTFT p50",
    "ttft_ms_p99": "TTFT p99",
    "itl_ms_p50": "ITL p50",
    "itl_ms_p99": "ITL p99",
    "tpot_ms_p50": "TPOT p50",
    "latency_ms_p50": "latency p50",
    "cpu_ms_per_output_token": "CPU ms/tok",
    "other_cores": "others' cores",
}
"""Figure -> column; what was not measured has none. Times are in milliseconds."""


def json_lines(head: Mapping[str, Any], repetitions: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per repetition and one of the medians; each says what was measured."""
    rows = [{"repetition": number, **figures} for number, figures in enumerate(repetitions, 1)]
    rows.append({"repetition": "median", **medians([dict(figures) for figures in repetitions])})
    return [json.dumps({**head, **_rounded(row)}) for row in rows]


def table(repetitions: Sequence[Mapping[str, Any]]) -> Table:
    """A row per repetition and one of the medians."""
    middle = medians([dict(figures) for figures in repetitions])
    names = [name for name in TITLES if name in middle]
    result = Table("run", box=None, pad_edge=False)
    for name in names:
        result.add_column(TITLES[name], justify="right")
    for number, figures in enumerate(repetitions, 1):
        result.add_row(str(number), *(_number(figures.get(name)) for name in names))
    if len(repetitions) > 1:
        result.add_row("median", *(_number(middle[name]) for name in names), style="bold")
    return result


def remarks(repetitions: Sequence[Mapping[str, Any]]) -> list[Text]:
    """What a reader of the figures must know."""
    middle = medians([dict(figures) for figures in repetitions])
    lines: list[Text] = []
    if middle.get("failed"):
        lines.append(Text(f"{middle['failed']} requests failed in a repetition", style="red"))
    if middle.get("missing_tokens"):
        lines.append(
            Text(
                f"{middle['missing_tokens']} tokens fewer than asked for: answers ended early, so "
                "engines cannot be compared by this",
                style="yellow",
            )
        )
    if middle.get("clean") is False:
        lines.append(
            Text(
                f"not clean: other processes used {middle['other_cores']:.2f} cores meanwhile",
                style="yellow",
            )
        )
    return lines


def _number(value: object) -> str:
    if not isinstance(value, (int, float)):
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()
    }
