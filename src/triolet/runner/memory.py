"""Cores and memory that this process may use: affinity and cgroup limits included.

In a container the machine's own numbers are wrong: a pool of threads larger than the quota is
throttled, and a KV cache sized by the machine's memory is killed. Both cgroup versions are
read; a limit that is not there or cannot be read is no limit.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2**63."""


def _read(path: Path) -> str | None:
    """The text of a small file, or None if there is no such file for us."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _read_int(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Folders that limit this process: its own cgroup and every one above it.

    Args:
        root: "/", or a copy of the file system for tests.
        controller: "cpu" or "memory" (version 1 has a hierarchy for each).
    """
    base = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, controllers, path = line.split(":", 2)
        mount = base if number == "0" else base / controller
        if number != "0" and controller not in controllers.split(","):
            continue
        inside = Path(path.lstrip("/"))
        # Inside a container the path is often that of the host and does not exist here; the
        # mount point itself is then the container's own cgroup, and it is in the list too.
        folders += [mount / part for part in (inside, *inside.parents)]
    return list(dict.fromkeys(folders))


def usable_cores(root: Path = Path("/")) -> int:
    """Cores this process can keep busy: its affinity, cut to the cgroup's CPU quota."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system (macOS, Windows)
        cores = os.cpu_count() or 1
    for folder in _cgroup_folders(root, "cpu"):
        quota, period = _read_int(folder / "cpu.cfs_quota_us"), None
        if quota is not None:
            period = _read_int(folder / "cpu.cfs_period_us")
        elif (text := _read(folder / "cpu.max")) is not None:
            fields = text.split()
            if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit():
                quota, period = int(fields[0]), int(fields[1])
        if quota is not None and quota > 0 and period:
            cores = min(cores, max(1, math.ceil(quota / period)))
    return max(1, cores)


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be taken now without swapping and without passing a cgroup's limit.

    Page cache counts as available, as it does in the kernel's MemAvailable.
    """
    available = _meminfo_available(root)
    for folder in _cgroup_folders(root, "memory"):
        if (limit := _read_int(folder / "memory.max")) is not None:
            used, cache = _read_int(folder / "memory.current"), "inactive_file"
        elif (limit := _read_int(folder / "memory.limit_in_bytes")) is not None:
            used, cache = _read_int(folder / "memory.usage_in_bytes"), "total_inactive_file"
        else:
            continue
        if used is None or limit >= _UNLIMITED:
            continue
        reclaimable = 0
        for line in (_read(folder / "memory.stat") or "").splitlines():
            name, _, value = line.partition(" ")
            if name == cache:
                reclaimable = int(value)
        available = min(available, max(0, limit - used + reclaimable))
    return available


def _meminfo_available(root: Path) -> int:
    """MemAvailable of the machine; without /proc, half of its physical memory."""
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
