"""Microseconds per step (schedule and update) by running and waiting requests.

    python tests/bench/bench_scheduler.py

Decode steps of sequences with a prefix cache; the fake results cost nothing that is counted.
"""

from __future__ import annotations

import statistics
import time

from triolet.config import CacheConfig, SchedulerConfig
from triolet.messages.runner_to_scheduler import BatchResult, KVGroup, RunnerInfo
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.request import GenerationRequest, RequestId
from triolet.sampling_params import SamplingParams
from triolet.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
PROMPT_TOKENS = 32
STEPS = 160
REPEATS = 5


def make_scheduler(running: int) -> Scheduler:
    info = RunnerInfo(
        num_blocks=running * 64 + 64,
        block_size=BLOCK_SIZE,
        groups=(KVGroup(1, None),),
        block_bytes=1,
        max_model_len=1024,
        vocab_size=1000,
    )
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=running, max_num_batched_tokens=max(8192, running)),
        CacheConfig(),
        info,
        eos_token_ids=(0,),
        model_key="bench",
        secret=b"bench",
    )
    scheduler.runner_restored(info, 0)
    return scheduler


def result_of(batch: ScheduledBatch) -> BatchResult:
    ids = [row.sequence_id for row in batch.scheduled if row.samples]
    return BatchResult(batch.incarnation, batch.step, ids, [1 + batch.step % 900] * len(ids))


def add(scheduler: Scheduler, count: int, first: int) -> None:
    sampling = SamplingParams(seed=1, max_tokens=900, ignore_eos=True)
    for number in range(first, first + count):
        prompt = tuple((number * 31 + position) % 1000 for position in range(PROMPT_TOKENS))
        scheduler.add(GenerationRequest(RequestId(str(number)), prompt, sampling, number * 1e-3), 0)


def step(scheduler: Scheduler) -> tuple[float, int]:
    started = time.perf_counter()
    batch = scheduler.schedule(0.0)
    planned = time.perf_counter()
    assert batch is not None
    result = result_of(batch)
    answered = time.perf_counter()
    scheduler.update(result, 0.0)
    return planned - started + time.perf_counter() - answered, len(batch.scheduled)


def measure(running: int, waiting: int) -> float:
    scheduler = make_scheduler(running)
    add(scheduler, running, 0)
    while step(scheduler)[1] < running:
        pass
    add(scheduler, waiting, running)
    times = [step(scheduler)[0] for _ in range(STEPS)]
    return statistics.median(times) * 1e6


def main() -> None:
    waitings = (0, 1_000, 10_000)
    print(f"{'running':>8}" + "".join(f"{f'{w} waiting':>16}" for w in waitings) + "   us per step")
    for running in (1, 64, 256, 1024):
        best = [min(measure(running, waiting) for _ in range(REPEATS)) for waiting in waitings]
        print(f"{running:>8}" + "".join(f"{value:>16.1f}" for value in best))


if __name__ == "__main__":
    main()
