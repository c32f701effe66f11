"""What the GPU check collects: numbers, pass marks, and how both are written."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch


@attrs.define
class Report:
    """Results of all stages.

    Attributes:
        device: Where it ran.
        rows: (stage, what, value, unit).
        marks: (what, value, limit, sign, passed).
        judges_speed: Whether marks of speed mean anything here.
        errors: Stages that failed, and why.
    """

    device: str
    judges_speed: bool = True
    rows: list[tuple[str, str, float, str]] = attrs.field(factory=list)
    marks: list[tuple[str, float, float, str, bool]] = attrs.field(factory=list)
    errors: list[tuple[str, str]] = attrs.field(factory=list)
    tuned: dict[str, list[dict[str, Any]]] = attrs.field(factory=dict)

    def add(self, stage: str, what: str, value: float, unit: str) -> None:
        self.rows.append((stage, what, value, unit))
        print(f"  {what:58s} {value:12.4g} {unit}", flush=True)

    def at_least(self, what: str, value: float, limit: float, *, speed: bool = False) -> None:
        if self.judges_speed or not speed:
            self.marks.append((what, value, limit, ">=", value >= limit))

    def at_most(self, what: str, value: float, limit: float, *, speed: bool = False) -> None:
        if self.judges_speed or not speed:
            self.marks.append((what, value, limit, "<=", value <= limit))

    def write(self, directory: Path) -> None:
        """gpu_check.json, gpu_check.md, and a table per tuned operation."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "gpu_check.json").write_text(json.dumps(attrs.asdict(self), indent=1))
        lines = [
            f"# GPU check on {self.device}",
            "",
            "| stage | what | value | unit |",
            "|---|---|---|---|",
        ]
        lines += [f"| {s} | {w} | {v:.4g} | {u} |" for s, w, v, u in self.rows]
        lines += ["", "| pass mark | value | limit | |", "|---|---|---|---|"]
        lines += [
            f"| {w} | {v:.4g} | {sign} {limit:.4g} | {'pass' if ok else 'FAIL'} |"
            for w, v, limit, sign, ok in self.marks
        ]
        lines += ["", *(f"- stage {s} failed: {text}" for s, text in self.errors)]
        (directory / "gpu_check.md").write_text("\n".join(lines) + "\n")
        for op, entries in self.tuned.items():
            (directory / f"{op}.tuned.json").write_text(json.dumps(entries, indent=1))


def time_ms(function: Callable[[], object], *, repeats: int = 20, flush: bool = True) -> float:
    """Median milliseconds of a call on the GPU, caches cold; on a CPU of one call.

    Args:
        function: Queues work.
        repeats: Calls that are timed.
        flush: Overwrite the second-level cache before each.
    """
    if not torch.cuda.is_available():
        start = time.perf_counter()
        function()
        return (time.perf_counter() - start) * 1e3
    for _ in range(3):
        function()
    dirt = torch.empty(256 << 20, dtype=torch.int8, device="cuda") if flush else None
    times: list[float] = []
    for _ in range(repeats):
        if dirt is not None:
            dirt.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)
