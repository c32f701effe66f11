"""Everything that only a GPU can tell, in one run of at most ten minutes, without a network.

    python tests/bench/gpu_check.py --out results       on a GPU
    python tests/bench/gpu_check.py --dry-run           every stage on a CPU, tiny, in the interpreter

Writes gpu_check.json, gpu_check.md and <op>.tuned.json, the entries for
kernels/triolet_kernels/tuned/<op>.json. Ends with 1 if a stage fails or a pass mark is missed; a
dry run judges no speed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
BUDGET_S = 570.0
"""A stage that would begin later is left out, and said to be."""


def stages() -> list[tuple[str, Callable[..., None]]]:
    """Imported here: the interpreter must be chosen before a kernel is decorated."""
    from bench import gpu_engine, gpu_kernels

    return [
        ("ceilings", gpu_kernels.measure_ceilings),
        ("correctness", gpu_kernels.check_correctness),
        ("compile", gpu_kernels.compile_all),
        ("sweep", gpu_kernels.sweep),
        ("kernels", gpu_kernels.measure_kernels),
        ("decode", gpu_engine.measure_decode),
        ("serve", gpu_engine.serve),
        ("transformers", gpu_engine.compare_transformers),
    ]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--only", nargs="*", help="names of stages; ceilings always run")
    arguments = parser.parse_args(argv)
    if arguments.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    sys.path[:0] = [str(TESTS), str(TESTS.parent / "src"), str(TESTS.parent / "kernels")]

    import torch

    from bench.gpu_kernels import Bench
    from bench.gpu_report import Report
    from triolet_kernels.cuda import TritonOps

    if not arguments.dry_run and not torch.cuda.is_available():
        sys.stderr.write("no CUDA device; --dry-run goes through every stage on a CPU\n")
        return 2
    torch.manual_seed(0)
    if arguments.dry_run:
        torch.set_num_threads(1)
        ops = TritonOps(torch.device("cpu"), torch.float32, (9, 0), upcast=True)
        name = "a CPU (dry run)"
    else:
        capability = torch.cuda.get_device_capability()
        ops = TritonOps(torch.device("cuda:0"), torch.bfloat16, capability)
        name = torch.cuda.get_device_name()
    report = Report(name, judges_speed=not arguments.dry_run)
    bench = Bench(ops, arguments.dry_run)
    began = time.perf_counter()
    for stage, run in stages():
        if arguments.only is not None and stage not in (*arguments.only, "ceilings"):
            continue
        if time.perf_counter() - began > BUDGET_S:
            report.errors.append((stage, "left out: the time is over"))
            continue
        print(f"{stage} ({time.perf_counter() - began:.0f} s)", flush=True)
        try:
            # The engine has its own inference mode, and threads that do not inherit this one.
            with torch.inference_mode(stage not in ("decode", "serve")):
                run(bench, report)
        except Exception as error:  # the other stages are worth running
            traceback.print_exc()
            report.errors.append((stage, f"{type(error).__name__}: {error}"))
    report.write(arguments.out or Path(tempfile.mkdtemp(prefix="gpu-check-")))
    for what, value, limit, sign, passed in report.marks:
        print(f"{'pass' if passed else 'FAIL'}  {what}: {value:.4g} {sign} {limit:.4g}")
    for stage, text in report.errors:
        print(f"FAIL  stage {stage}: {text}")
    return 1 if report.errors or not all(mark[-1] for mark in report.marks) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
