"""The script that waits for a GPU goes through all of its stages on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
SCRIPT = Path(__file__).parents[1] / "bench" / "gpu_check.py"
STAGES = {
    "ceilings", "correctness", "compile", "sweep", "kernels", "decode", "serve", "transformers",
}  # fmt: skip


@pytest.mark.slow
def test_dry_run_goes_through_every_stage(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--dry-run", "--out", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    written = json.loads((tmp_path / "gpu_check.json").read_text())
    assert {row[0] for row in written["rows"]} == STAGES
    assert written["errors"] == []
    assert all(mark[-1] for mark in written["marks"])
    table = (tmp_path / "gpu_check.md").read_text()
    assert "decode attention" in table
    for op in ("paged_decode", "paged_prefill"):
        entries = json.loads((tmp_path / f"{op}.tuned.json").read_text())
        assert entries[0]["capability"] == "9.0"


@pytest.mark.slow
def test_without_a_gpu_it_says_so() -> None:
    run = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    if run.returncode != 2:
        pytest.skip("there is a GPU here")
    assert "--dry-run" in run.stderr
