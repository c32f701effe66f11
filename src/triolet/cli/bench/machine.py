"""CPU time of this machine and of trees of processes, as /proc tells it.

Benchmarks on a machine that others use are worthless without it. Where there is no /proc (not
Linux), only the own CPU time is known.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import attrs

from triolet.cli.bench.records import CpuUse

PROC = Path("/proc")


def process_tree(pid: int) -> list[int]:
    """A process and all that descend from it, as far as they are there now."""
    children: dict[int, list[int]] = {}
    for path in PROC.glob("[0-9]*/stat"):
        fields = _stat_fields(path)
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def tree_cpu_s(pid: int) -> float:
    """CPU seconds that a tree of processes has used, ended children that were awaited included."""
    ticks = 0
    for member in process_tree(pid):
        fields = _stat_fields(PROC / str(member) / "stat")
        if fields is not None:
            ticks += sum(int(field) for field in fields[11:15])  # utime, stime, cutime, cstime
    return ticks / os.sysconf("SC_CLK_TCK")


def tree_rss_bytes(pid: int) -> int:
    """Resident memory of a tree of processes; shared pages count once for each."""
    pages = 0
    for member in process_tree(pid):
        fields = _stat_fields(PROC / str(member) / "stat")
        if fields is not None:
            pages += int(fields[21])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _stat_fields(path: Path) -> list[str] | None:
    """Fields of a stat file from the third on (proc_pid_stat(5)); None if the process is gone."""
    try:
        text = path.read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _machine_cpu_s() -> float:
    """CPU seconds of all cores so far, whoever used them."""
    ticks = [int(field) for field in (PROC / "stat").read_text().split("\n", 1)[0].split()[1:8]]
    user, nice, system, _, _, irq, softirq = ticks
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


@attrs.frozen
class _Reading:
    wall_s: float
    own_s: float
    server_s: float
    machine_s: float


class CpuMeter:
    """Measures CPU use from its making on.

    Args:
        server_pid: Root of the processes of the server that is measured, if it runs here.
        is_client: A server is measured, not an engine in this process. Without its pid nobody
            can say what others used, as it may be one of them.
    """

    def __init__(self, server_pid: int | None = None, *, is_client: bool = False) -> None:
        self._server_pid = server_pid
        self._is_client = is_client or server_pid is not None
        self._has_proc = (PROC / "stat").exists()
        self._first = self._read()

    def read(self) -> CpuUse:
        """What was used since the making."""
        last = self._read()
        wall_s = max(last.wall_s - self._first.wall_s, 1e-9)
        own = (last.own_s - self._first.own_s) / wall_s
        server = (last.server_s - self._first.server_s) / wall_s
        machine = (last.machine_s - self._first.machine_s) / wall_s
        can_tell = self._has_proc and (self._server_pid is not None or not self._is_client)
        others = max(0.0, machine - own - server) if can_tell else None
        if self._is_client:
            return CpuUse(None if self._server_pid is None else server, own, others)
        return CpuUse(own, None, others)

    def _read(self) -> _Reading:
        wall_s = time.perf_counter()
        if not self._has_proc:
            return _Reading(wall_s, time.process_time(), 0.0, 0.0)
        server_s = 0.0 if self._server_pid is None else tree_cpu_s(self._server_pid)
        own_s = tree_cpu_s(os.getpid())
        if self._server_pid is not None and self._server_pid in process_tree(os.getpid()):
            own_s -= server_s  # the server is a child of ours
        return _Reading(wall_s, own_s, server_s, _machine_cpu_s())
