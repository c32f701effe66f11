"""Measure what the machine can do at most: builds `ceilings.cpp` and runs it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import cast

SOURCE = Path(__file__).with_name("ceilings.cpp")


def build(directory: Path) -> Path:
    """Compile for this very CPU; AMX by name, which GCC 12 does not take from -march=native."""
    program = directory / "ceilings"
    flags = ["-std=c++20", "-O3", "-march=native", "-pthread"]
    info = Path("/proc/cpuinfo")
    if info.exists() and "amx_bf16" in info.read_text():
        flags += ["-mamx-tile", "-mamx-bf16", "-mamx-int8"]
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(program)], check=True)
    return program


def measure(threads: int) -> dict[str, float]:
    """Bytes and products per second, by name, on `threads` threads together."""
    with tempfile.TemporaryDirectory() as directory:
        program = build(Path(directory))
        output = subprocess.run(
            [str(program), str(threads)], check=True, capture_output=True, text=True
        ).stdout
    return cast("dict[str, float]", json.loads(output))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    print(json.dumps(measure(parser.parse_args().threads)))
