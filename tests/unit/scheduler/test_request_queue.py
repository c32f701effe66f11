from __future__ import annotations

import random

import pytest

from support.kv_runner import runner_info
from triolet.config import SchedulerConfig
from triolet.request import GenerationRequest, RequestId, SequenceId
from triolet.sampling_params import SamplingParams
from triolet.scheduler.kv_cache_manager import KVCacheManager
from triolet.scheduler.policy import request_key
from triolet.scheduler.request_queue import RunningSet, WaitingQueue
from triolet.scheduler.sequence import Sequence
from triolet.scheduler.tree import RequestTree

KV = KVCacheManager(runner_info(4, 4), enable_prefix_caching=False, model_key="m", secret=b"s")


def make_sequence(arrival: float, number: int = 0) -> Sequence:
    request = GenerationRequest(RequestId("r"), (1,), SamplingParams(seed=1), arrival)
    tree = RequestTree.of(request, request_key(request, SchedulerConfig(), number), (), 8)
    blocks = KV.sequence_blocks(None)
    return Sequence(SequenceId(number), tree, 0, (*tree.key, 0), [1], request.sampling, blocks)


def test_the_first_by_key_is_served_first_whatever_was_removed() -> None:
    """Random pushes and removals against a sorted list."""
    rng = random.Random(5)
    queue = WaitingQueue()
    model: list[Sequence] = []
    for number in range(2000):
        roll = rng.random()
        if roll < 0.45 or not model:
            sequence = make_sequence(rng.randrange(50), number)
            queue.push(sequence)
            model.append(sequence)
        else:
            sequence = rng.choice(model) if roll < 0.8 else min(model, key=lambda s: s.key)
            queue.remove(sequence)
            model.remove(sequence)
        expected = min(model, key=lambda s: s.key, default=None)
        assert queue.peek() is expected
        assert len(queue) == len(model)
    queue.check_integrity()


def test_a_sequence_can_come_back_after_it_was_removed() -> None:
    queue = WaitingQueue()
    first, second = make_sequence(1, 1), make_sequence(2, 2)
    queue.push(first)
    queue.push(second)
    queue.remove(first)
    assert queue.peek() is second
    queue.push(first)
    assert queue.peek() is first
    queue.remove(first)
    queue.remove(second)
    assert queue.peek() is None
    queue.check_integrity()


def test_tombstones_do_not_pile_up() -> None:
    queue = WaitingQueue()
    queue.push(make_sequence(0, 0))
    for number in range(1, 1000):
        sequence = make_sequence(number, number)
        queue.push(sequence)
        queue.remove(sequence)
    queue.check_integrity()


def test_the_running_set_is_sorted_by_key() -> None:
    running = RunningSet()
    sequences = [make_sequence(arrival, number) for number, arrival in enumerate([3, 1, 2, 1])]
    for sequence in sequences:
        running.add(sequence)
    assert list(running) == [sequences[1], sequences[3], sequences[2], sequences[0]]
    assert next(running.from_last()) is sequences[0]
    running.remove(sequences[3])
    running.check_integrity()
    with pytest.raises(AssertionError, match="not in the running set"):
        running.remove(sequences[3])
    assert running.clear() == [sequences[1], sequences[2], sequences[0]]
    assert len(running) == 0
