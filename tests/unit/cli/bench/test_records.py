import io
import json
import random

import numpy as np
import pytest
from rich.console import Console

from triolet.cli.bench.records import (
    CpuUse,
    RequestRecord,
    figures_of_load,
    medians,
    percentile,
)
from triolet.cli.bench.report import json_lines, remarks, table

RECORDS = [
    RequestRecord(
        start_s=0.0,
        end_s=1.0,
        piece_times_s=(0.25, 0.5, 1.0),
        prompt_tokens=10,
        completion_tokens=4,
        cached_tokens=8,
        wanted_tokens=4,
    ),
    RequestRecord(
        start_s=1.0,
        end_s=2.0,
        piece_times_s=(1.5, 2.0),
        prompt_tokens=6,
        completion_tokens=2,
        wanted_tokens=4,
    ),
    RequestRecord(start_s=0.0, end_s=0.1, error="HTTP 500"),
]


@pytest.mark.parametrize("percent", [0, 10, 50, 90, 99, 100])
def test_percentile_is_that_of_numpy(percent: float) -> None:
    rng = random.Random(percent)
    for size in (1, 2, 3, 10, 101):
        values = [rng.random() for _ in range(size)]
        assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))
    assert percentile([], percent) is None


def test_figures_follow_from_what_happened() -> None:
    figures = figures_of_load(RECORDS, CpuUse(engine=1.5, client=0.1, others=0.3))
    assert figures["wall_s"] == 2.0
    assert figures["output_tokens_per_s"] == 3.0
    assert figures["total_tokens_per_s"] == 11.0
    assert figures["requests_per_s"] == 1.0
    assert figures["ttft_ms_p50"] == pytest.approx(375)
    assert figures["itl_ms_p50"] == pytest.approx(500)
    assert figures["tpot_ms_p50"] == pytest.approx((250 + 500) / 2)
    assert figures["latency_ms_p99"] == pytest.approx(1000)
    assert figures["cpu_ms_per_output_token"] == pytest.approx(500)
    assert figures["failed"] == 1
    assert figures["missing_tokens"] == 2
    assert figures["cached_tokens"] == 8
    assert figures["clean"] is False


def test_what_was_not_measured_is_absent() -> None:
    figures = figures_of_load(RECORDS[2:], CpuUse(client=0.1))
    assert figures["output_tokens_per_s"] == 0
    absent = {"ttft_ms_p50", "engine_cores", "cpu_ms_per_output_token", "other_cores", "clean"}
    assert not absent & set(figures)


def test_median_is_clean_and_whole_only_if_every_repetition_is() -> None:
    rows = [
        {"output_tokens_per_s": 1.0, "clean": True, "failed": 0},
        {"output_tokens_per_s": 9.0, "clean": False, "failed": 2},
        {"output_tokens_per_s": 2.0, "clean": True, "failed": 0},
    ]
    assert medians(rows) == {"output_tokens_per_s": 2.0, "clean": False, "failed": 2}


def test_report_shows_repetitions_median_and_what_is_wrong() -> None:
    rows = [figures_of_load(RECORDS, CpuUse(engine=1.0, others=x)) for x in (0.0, 0.5)]
    lines = [json.loads(line) for line in json_lines({"bench": "serve"}, rows)]
    assert [line["repetition"] for line in lines] == [1, 2, "median"]
    assert all(line["bench"] == "serve" for line in lines)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table(rows))
    text = console.export_text()
    assert "median" in text
    assert "TTFT p50" in text
    said = " ".join(str(remark) for remark in remarks(rows))
    assert "1 requests failed" in said
    assert "2 tokens fewer" in said
    assert "not clean: other processes used 0.25 cores" in said


def test_clean_and_whole_run_has_no_remark() -> None:
    assert remarks([figures_of_load(RECORDS[:1], CpuUse(engine=1.0, others=0.0))]) == []
