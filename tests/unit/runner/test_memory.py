"""Limits of cgroups (both versions) are read from copies of /proc and /sys."""

import os
from pathlib import Path

import pytest

from triolet.runner.memory import available_memory_bytes, usable_cores

MIB = 1 << 20


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemAvailable:    8388608 kB\n", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)


def test_without_cgroups_the_machine_and_the_affinity_count(tmp_path: Path) -> None:
    root = write(tmp_path, {})
    assert usable_cores(root) == 4
    assert available_memory_bytes(root) == 8192 * MIB


@pytest.mark.parametrize(
    ("quota", "cores"), [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 4)]
)
def test_version_2_cpu_quota(tmp_path: Path, quota: str, cores: int) -> None:
    files = {"proc/self/cgroup": "0::/app.slice\n", "sys/fs/cgroup/app.slice/cpu.max": quota}
    assert usable_cores(write(tmp_path, files)) == cores


def test_version_1_cpu_quota(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n3:memory:/\n",
        # inside a container the mount point is the container's own cgroup
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    }
    assert usable_cores(write(tmp_path, files)) == 2


def test_an_outer_limit_counts_too(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/inner/memory.max": "max",
        "sys/fs/cgroup/outer/memory.max": str(1000 * MIB),
        "sys/fs/cgroup/outer/memory.current": str(700 * MIB),
        "sys/fs/cgroup/outer/memory.stat": f"anon 5\ninactive_file {200 * MIB}\n",
    }
    assert available_memory_bytes(write(tmp_path, files)) == 500 * MIB


def test_version_1_memory_limit(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/job"
    files = {
        "proc/self/cgroup": "4:memory:/job\n0::/\n",
        f"{folder}/memory.limit_in_bytes": str(600 * MIB),
        f"{folder}/memory.usage_in_bytes": str(100 * MIB),
        f"{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {50 * MIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1",
    }
    assert available_memory_bytes(write(tmp_path, files)) == 550 * MIB


def test_a_limit_that_is_passed_leaves_nothing(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "100",
        "sys/fs/cgroup/memory.current": "200",
    }
    assert available_memory_bytes(write(tmp_path, files)) == 0
