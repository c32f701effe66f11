"""The pool under any order of operations, against a model made of plain sets."""

from __future__ import annotations

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from triolet.scheduler.block_pool import BlockPool


def make_pool(num_blocks: int) -> tuple[BlockPool, list[int]]:
    evicted: list[int] = []
    return BlockPool(num_blocks, evicted.append), evicted


def take(pool: BlockPool, count: int) -> list[int]:
    blocks = pool.take(count)
    assert blocks is not None
    return blocks


def test_take_more_than_available_takes_nothing() -> None:
    pool, _ = make_pool(3)
    take(pool, 2)
    assert pool.take(2) is None
    assert (pool.num_free, pool.num_used, pool.num_cached) == (1, 2, 0)


def test_the_cached_block_released_longest_ago_is_evicted_first() -> None:
    pool, evicted = make_pool(3)
    blocks = take(pool, 3)
    for block in blocks:
        pool.set_keyed(block)
    for block in (blocks[1], blocks[2], blocks[0]):
        pool.release(block)
    assert pool.num_cached == 3
    assert take(pool, 2) == [blocks[1], blocks[2]]
    assert evicted == [blocks[1], blocks[2]]


def test_a_free_block_is_given_away_before_a_cached_one() -> None:
    pool, evicted = make_pool(2)
    cached, free = take(pool, 2)
    pool.set_keyed(cached)
    pool.release(cached)
    pool.release(free)
    assert take(pool, 1) == [free]
    assert not evicted


def test_sharing_a_cached_block_saves_it_from_eviction() -> None:
    pool, evicted = make_pool(2)
    cached, other = take(pool, 2)
    pool.set_keyed(cached)
    pool.release(cached)
    pool.share(cached)
    pool.release(other)
    assert pool.take(2) is None
    assert take(pool, 1) == [other]
    assert not evicted


def test_a_shared_block_is_used_until_its_last_reference() -> None:
    pool, _ = make_pool(1)
    (block,) = take(pool, 1)
    pool.share(block)
    pool.release(block)
    assert pool.is_used(block)
    pool.release(block)
    assert pool.num_free == 1


def test_releasing_twice_or_sharing_a_free_block_is_a_bug() -> None:
    pool, _ = make_pool(1)
    (block,) = take(pool, 1)
    pool.release(block)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(block)
    with pytest.raises(AssertionError, match="free"):
        pool.share(block)


def test_check_integrity_finds_a_lost_reference() -> None:
    pool, _ = make_pool(2)
    blocks = take(pool, 2)
    pool.check_integrity(blocks)
    with pytest.raises(AssertionError, match="references"):
        pool.check_integrity(blocks[:1])
    with pytest.raises(AssertionError, match="references"):
        pool.check_integrity([*blocks, blocks[0]])


class PoolMachine(RuleBasedStateMachine):
    """References, keys and the LRU order, kept twice."""

    SIZE = 6

    def __init__(self) -> None:
        super().__init__()
        self.held: list[int] = []
        self.keyed: set[int] = set()
        self.lru: list[int] = []
        self.pool = BlockPool(self.SIZE, self.on_evict)

    def on_evict(self, block: int) -> None:
        assert block == self.lru.pop(0), "evicted out of order"
        self.keyed.remove(block)

    @rule(count=st.integers(0, SIZE + 1))
    def take(self, count: int) -> None:
        available = self.SIZE - len(set(self.held))
        taken = self.pool.take(count)
        assert (taken is None) == (count > available)
        assert not set(taken or ()) & set(self.held), "a block in two hands"
        self.held += taken or []

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.held))
        self.pool.share(block)
        self.held.append(block)

    @precondition(lambda self: self.lru)
    @rule(data=st.data())
    def revive(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.lru))
        self.pool.share(block)
        self.lru.remove(block)
        self.held.append(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.held))
        self.pool.release(block)
        self.held.remove(block)
        if block not in self.held and block in self.keyed:
            self.lru.append(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def key(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.held))
        self.pool.set_keyed(block)
        self.keyed.add(block)

    @precondition(lambda self: self.keyed)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.keyed)))
        self.pool.clear_keyed(block)
        self.keyed.remove(block)
        if block in self.lru:
            self.lru.remove(block)

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity(self.held)
        assert self.pool.num_used == len(set(self.held))
        assert self.pool.num_cached == len(self.lru)
        assert self.pool.num_free + self.pool.num_used + self.pool.num_cached == self.SIZE


PoolMachine.TestCase.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
TestPoolMachine = PoolMachine.TestCase
