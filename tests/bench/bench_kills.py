"""16 streams while their worker is killed three times and stopped once: same texts, and the pause.

    python tests/bench/bench_kills.py [MODEL]

Half of the streams are greedy, half seeded at temperature 0.8, on a batch-invariant path. Each
signal comes after at least ten more tokens of every stream. The pause is the longest time in which
no stream got a token.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import trio

import triolet
from triolet.engine.engine import Engine

STREAMS, TOKENS = 16, 80


def children() -> list[int]:
    tasks = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [int(pid) for task in tasks for pid in task.read_text().split()]
    return [pid for pid in pids if b"worker_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def run(engine: Engine, signals: list[signal.Signals]) -> tuple[list[str], list[float]]:
    """Texts, and the pause after each signal in seconds."""
    texts, tokens = [""] * STREAMS, [0] * STREAMS
    last = [time.perf_counter()]
    pauses: list[float] = []

    async def one(i: int) -> None:
        sampling = triolet.SamplingParams(
            temperature=0.8 if i % 2 else 0.0, seed=i, max_tokens=TOKENS, ignore_eos=True
        )
        async with engine.generate(f"Story number {i} begins with", sampling) as stream:
            async for delta in stream:
                texts[i] += delta.text
                tokens[i] += len(delta.token_ids)
                last[0] = time.perf_counter()

    async with trio.open_nursery() as nursery:
        for i in range(STREAMS):
            nursery.start_soon(one, i)
        for number in signals:
            floor = [count + 10 for count in tokens]
            while any(count < low for count, low in zip(tokens, floor, strict=True)):
                await trio.sleep(0.005)
            (worker,) = children()
            os.kill(worker, number)
            start = last[0]
            before = sum(tokens)
            while children() == [worker] or sum(tokens) == before:
                await trio.sleep(0.005)
            pauses.append(time.perf_counter() - start)
    return texts, pauses


async def main(model: str = "demo") -> None:
    async with triolet.open_engine(
        model, runner="process", batch_invariant=True, step_timeout_s=5.0, kv_cache_tokens=16384
    ) as engine:
        print(engine.info.description)
        calm, _ = await run(engine, [])
        killed, pauses = await run(engine, [signal.SIGKILL] * 3)
        equal = sum(a == b for a, b in zip(calm, killed, strict=True))
        print(f"killed: {equal} of {STREAMS} equal, pauses {[round(p, 2) for p in pauses]} s")
        stopped, pauses = await run(engine, [signal.SIGSTOP])
        equal = sum(a == b for a, b in zip(calm, stopped, strict=True))
        print(f"stopped: {equal} of {STREAMS} equal, pause {pauses[0]:.2f} s (limit of a step 5 s)")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "demo")
