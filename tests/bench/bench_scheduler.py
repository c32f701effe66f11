"""Microseconds of CPU per step (schedule and update) by running and waiting requests.

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
MAX_TOKENS = 200
STEPS = 160
REPEATS = 5


def make_scheduler(running: int, num_blocks: int, seats: int) -> Scheduler:
    info = RunnerInfo(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        groups=(KVGroup(1, None),),
        block_bytes=1,
        max_model_len=1024,
        vocab_size=1000,
    )
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=seats, max_num_batched_tokens=max(8192, seats)),
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
    sampling = SamplingParams(seed=1, max_tokens=MAX_TOKENS, ignore_eos=True)
    for number in range(first, first + count):
        prompt = (number % 1000, number // 1000, *range(PROMPT_TOKENS - 2))
        scheduler.add(GenerationRequest(RequestId(str(number)), prompt, sampling, number * 1e-3), 0)


def step(scheduler: Scheduler) -> tuple[float, int]:
    started = time.thread_time()
    batch = scheduler.schedule(0.0)
    planned = time.thread_time()
    assert batch is not None
    result = result_of(batch)
    answered = time.thread_time()
    scheduler.update(result, 0.0)
    return planned - started + time.thread_time() - answered, len(batch.scheduled)


def measure(running: int, waiting: int, *, full_pool: bool) -> float:
    """Median microseconds of a decode step; what waits lacks seats, or blocks."""
    most = -(-(PROMPT_TOKENS + MAX_TOKENS) // BLOCK_SIZE)
    blocks = running * most + (2 if full_pool else 2 * most)
    scheduler = make_scheduler(running, blocks, 2 * running if full_pool else running)
    scheduler._planner.growth.ratio = 1.0  # as if every output had used its max_tokens
    add(scheduler, running, 0)
    while step(scheduler)[1] < running:
        pass
    add(scheduler, waiting, running)
    times: list[float] = []
    for _ in range(STEPS):
        micros, rows = step(scheduler)
        assert rows == running, "what waits must go on waiting"
        times.append(micros)
    return statistics.median(times) * 1e6


def main() -> None:
    waitings = (0, 1_000, 10_000)
    print(
        f"{'running':>8}"
        + "".join(f"{f'{w} waiting':>16}" for w in waitings)
        + "   (us of CPU per step)"
    )
    for full_pool in (False, True):
        print("no blocks left:" if full_pool else "no seats left:")
        for running in (1, 64, 256, 1024):
            # Interleaved, so that other load of the machine hits all columns alike.
            rounds = [
                [measure(running, waiting, full_pool=full_pool) for waiting in waitings]
                for _ in range(REPEATS)
            ]
            best = [min(column) for column in zip(*rounds, strict=True)]
            print(f"{running:>8}" + "".join(f"{value:>16.1f}" for value in best))


if __name__ == "__main__":
    main()
