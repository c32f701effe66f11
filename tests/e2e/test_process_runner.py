"""A worker process that is killed, stopped or orphaned: nobody's answer is lost, nothing stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

import triolet
from triolet.engine.engine import Engine

pytestmark = pytest.mark.slow

SETTINGS: dict[str, object] = {
    "runner": "process",
    "dtype": "float32",
    "batch_invariant": True,
    "kernels": "reference",
    "threads": 1,
    "kv_cache_tokens": 8192,
}


def config_of(**more: object) -> triolet.EngineConfig:
    return triolet.EngineConfig.of("tiny-random", **SETTINGS, **more)


def children(parent: int | None = None) -> list[int]:
    """Worker processes of a process (this one), whichever of its threads started them."""
    tasks = Path(f"/proc/{parent or os.getpid()}/task").glob("*/children")
    pids = [int(pid) for task in tasks for pid in task.read_text().split()]
    return [pid for pid in pids if b"worker_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def samplings() -> list[triolet.SamplingParams]:
    """Half greedy, half seeded."""
    return [
        triolet.SamplingParams(
            temperature=0.0 if i % 2 else 0.8, seed=i, max_tokens=60 + i, ignore_eos=True
        )
        for i in range(8)
    ]


async def run_all(engine: Engine, disturb: list[signal.Signals]) -> list[str]:
    """All streams at once; each signal goes to the worker after ten more tokens of each."""
    texts = ["" for _ in samplings()]
    tokens = [0 for _ in samplings()]

    async def one(i: int, sampling: triolet.SamplingParams) -> None:
        prompt = [40 + i, 50, 60 + i] * 5
        async with engine.generate(prompt, sampling) as stream:
            async for delta in stream:
                texts[i] += delta.text
                tokens[i] += len(delta.token_ids)

    async with trio.open_nursery() as nursery:
        for i, sampling in enumerate(samplings()):
            nursery.start_soon(one, i, sampling)
        for number in disturb:
            floor = [count + 10 for count in tokens]
            while any(count < low for count, low in zip(tokens, floor, strict=True)):
                await trio.sleep(0.005)
            (worker,) = children()
            os.kill(worker, number)
            while children() == [worker]:
                await trio.sleep(0.01)
    return texts


async def test_killed_and_stopped_workers_cost_a_pause_and_no_token() -> None:
    with trio.fail_after(240):
        async with triolet.open_engine(config=config_of()) as engine:
            undisturbed = await run_all(engine, [])
            killed = await run_all(engine, [signal.SIGKILL] * 3)
            assert engine.statistics().runner_restarts == 3
        assert killed == undisturbed
        async with triolet.open_engine(config=config_of(step_timeout_s=2.0)) as engine:
            assert await run_all(engine, [signal.SIGSTOP]) == undisturbed
    assert children() == []


async def test_a_model_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(triolet.TrioletError, match="/no/such/model"):
        async with triolet.open_engine("/no/such/model", runner="process"):
            pytest.fail("opened")
    assert children() == []


HOST = """
import trio, triolet
async def main():
    async with triolet.open_engine("tiny-random", runner="process", kv_cache_tokens=4096) as engine:
        async with engine.generate([40, 41], triolet.SamplingParams(max_tokens=1900, ignore_eos=True)) as stream:
            async for delta in stream:
                print("going", flush=True)
trio.run(main)
"""


FORK_ONCE = """                import os, signal
                if not globals().get("forked"):
                    globals()["forked"] = True
                    if os.fork() == 0:
                        # Holds every descriptor of its parent, as pools of processes do.
                        signal.alarm(10)
                        signal.pause()
"""


@pytest.mark.parametrize("forks", [False, True])
def test_no_worker_outlives_a_host_that_is_killed(forks: bool) -> None:
    program = (
        HOST.replace("                print", FORK_ONCE + "                print")
        if forks
        else HOST
    )
    host = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert host.stdout is not None
    assert host.stdout.readline() == b"going\n"
    (worker,) = children(host.pid)
    host.kill()
    host.wait()
    host.stdout.close()
    deadline = time.monotonic() + 2.0
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        os.sched_yield()
    assert not Path(f"/proc/{worker}").exists()
