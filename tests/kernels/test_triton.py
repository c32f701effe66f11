"""Runs the interpreter tests: Triton reads TRITON_INTERPRET when a kernel is decorated, so they
need a process in which no kernel was imported before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent
FILES = sorted(path.name for path in HERE.glob("test_triton_*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_in_the_interpreter(name: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / name)]
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900, cwd=HERE.parents[1]
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
    assert " skipped" not in run.stdout, run.stdout[-1000:]


def test_every_kernel_file_has_a_test_that_runs_it() -> None:
    assert FILES, "no interpreter tests found"
    kernels = HERE.parents[1] / "kernels" / "triolet_kernels" / "triton"
    helpers = {"__init__", "jit", "functions", "launch_table", "kv_cache", "selection"}
    text = "".join((HERE / name).read_text() for name in FILES)
    for path in kernels.glob("*.py"):
        if path.stem not in helpers:
            assert path.stem in text, f"no interpreter test names {path.stem}"
