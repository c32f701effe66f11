import os
import subprocess
import sys
import time

import pytest

from triolet.cli.bench.machine import (
    PROC,
    CpuMeter,
    process_tree,
    tree_cpu_s,
    tree_rss_bytes,
)

pytestmark = pytest.mark.skipif(not (PROC / "stat").exists(), reason="there is no /proc")


def burn(seconds: float) -> None:
    begun = time.process_time()
    while time.process_time() - begun < seconds:
        pass


def test_tree_holds_children_and_their_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        tree = process_tree(os.getpid())
        assert tree[0] == os.getpid()
        assert child.pid in tree
        assert tree_rss_bytes(os.getpid()) > tree_rss_bytes(child.pid) >= 0
        assert child.stdin is not None
        child.stdin.close()
    assert child.pid not in process_tree(os.getpid())


def test_process_that_is_gone_used_nothing() -> None:
    assert tree_cpu_s(2**22 + 1) == 0.0


def test_own_cpu_time_is_measured() -> None:
    meter = CpuMeter()
    begun = time.perf_counter()
    burn(0.06)
    wall_s = time.perf_counter() - begun
    use = meter.read()
    assert use.engine is not None
    assert use.engine * wall_s == pytest.approx(0.06, abs=0.035)  # ticks of 10 ms
    assert use.client is None
    assert use.others is not None


def test_server_of_unknown_process_leaves_others_unknown() -> None:
    use = CpuMeter(is_client=True).read()
    assert use.engine is None
    assert use.others is None
    assert use.client is not None
