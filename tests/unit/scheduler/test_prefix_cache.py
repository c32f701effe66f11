from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from triolet.messages.runner_to_scheduler import KVGroup
from triolet.scheduler.prefix_cache import KeyChain, PrefixCache, PrefixHit, window_blocks

BLOCK_SIZE = 2


def make_cache(
    windows: tuple[int | None, ...] = (None,),
    *,
    num_blocks: int = 32,
    model_key: str = "m",
    secret: bytes = b"s",
) -> PrefixCache:
    groups = tuple(KVGroup(1, window) for window in windows)
    return PrefixCache(num_blocks, BLOCK_SIZE, groups, model_key=model_key, secret=secret)


def chain(cache: PrefixCache, salt: str | None = None) -> KeyChain:
    return KeyChain(cache.root(salt), BLOCK_SIZE)


def store(cache: PrefixCache, tokens: list[int], salt: str | None = None) -> list[list[int]]:
    """Register every full block in every group and release them; the tables."""
    keys = chain(cache, salt)
    tables: list[list[int]] = []
    for group in range(len(cache._windows)):
        table = cache.pool.take(len(tokens) // BLOCK_SIZE)
        assert table is not None
        tables.append(table)
        for index, block in enumerate(table):
            cache.add(group, keys.key(index, tokens), block)
    for table in tables:
        for block in reversed(table):
            cache.pool.release(block)
    cache.check_integrity()
    return tables


def find(cache: PrefixCache, tokens: list[int], salt: str | None = None) -> PrefixHit:
    return cache.find(chain(cache, salt), tokens, len(tokens) // BLOCK_SIZE)


def test_the_longest_common_prefix_is_found_in_full_blocks() -> None:
    cache = make_cache()
    (table,) = store(cache, [1, 2, 3, 4, 5, 6])
    hit = find(cache, [1, 2, 3, 4, 9, 6, 7])
    assert hit == PrefixHit(2, (0,), (table[:2],))


def test_equal_blocks_after_different_prefixes_are_different() -> None:
    cache = make_cache()
    store(cache, [1, 2, 3, 4])
    assert find(cache, [9, 9, 3, 4]).num_blocks == 0
    assert find(cache, [3, 4]).num_blocks == 0


def test_salts_do_not_share() -> None:
    cache = make_cache()
    store(cache, [1, 2], salt="a")
    assert find(cache, [1, 2], salt="a").num_blocks == 1
    for other in (None, "", "b", "None"):
        assert find(cache, [1, 2], salt=other).num_blocks == 0


def test_model_salt_and_secret_cannot_imitate_each_other() -> None:
    texts = ["", "a", "b", "ab", "a\x00", "\x01a"]
    roots = [
        make_cache(model_key=model, secret=secret.encode()).root(salt)
        for model, secret, salt in itertools.product(texts, texts, [None, *texts])
    ]
    assert len(set(roots)) == len(roots)


def test_an_evicted_block_is_not_found_any_more() -> None:
    cache = make_cache(num_blocks=2)
    store(cache, [1, 2, 3, 4])
    taken = cache.pool.take(1)
    assert taken is not None
    cache.check_integrity()
    assert find(cache, [1, 2, 3, 4]).num_blocks == 1, "the tail goes first"
    assert cache.pool.take(1) is not None
    assert find(cache, [1, 2, 3, 4]).num_blocks == 0


def test_reset_forgets_used_and_released_blocks() -> None:
    cache = make_cache()
    store(cache, [1, 2, 3, 4])
    hit = find(cache, [1, 2])
    cache.pool.share(hit.tables[0][0])
    cache.reset()
    cache.check_integrity()
    assert find(cache, [1, 2, 3, 4]).num_blocks == 0
    assert cache.pool.num_cached == 0
    assert cache.pool.num_used == 1


def test_the_first_of_two_equal_blocks_stays_the_one_found() -> None:
    cache = make_cache()
    keys = chain(cache)
    blocks = cache.pool.take(2)
    assert blocks is not None
    for block in blocks:
        cache.add(0, keys.key(0, [1, 2]), block)
    assert find(cache, [1, 2]).tables == ([blocks[0]],)
    assert not cache.pool.is_keyed(blocks[1])


@pytest.mark.parametrize(("window", "expected"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3)])
def test_a_window_group_reads_the_last_blocks_only(window: int, expected: int) -> None:
    assert window_blocks(KVGroup(1, window), BLOCK_SIZE) == expected
    cache = make_cache((window,))
    (table,) = store(cache, [1, 2, 3, 4, 5, 6])
    hit = find(cache, [1, 2, 3, 4, 5, 6])
    assert hit == PrefixHit(3, (3 - expected,), (table[3 - expected :],))


def test_a_hit_holds_for_all_groups_at_once() -> None:
    cache = make_cache((None, 3))
    full, window = store(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    cache.forget(window[3])  # the window group cannot start at 4 blocks, but it can at 3
    assert find(cache, [1, 2, 3, 4, 5, 6, 7, 8]) == PrefixHit(3, (0, 2), (full[:3], window[2:3]))
    cache.forget(full[1])
    assert find(cache, [1, 2, 3, 4, 5, 6, 7, 8]).num_blocks == 1


@settings(deadline=None, max_examples=50)
@given(
    windows=st.lists(st.none() | st.integers(1, 9), min_size=1, max_size=3),
    missing=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7))),
    limit=st.integers(0, 8),
)
def test_a_hit_is_the_longest_that_every_group_can_serve(
    windows: list[int | None], missing: list[tuple[int, int]], limit: int
) -> None:
    """Against a search over all lengths, position by position."""
    cache = make_cache(tuple(windows))
    tokens = list(range(16))
    tables = store(cache, tokens)
    for group, index in missing:
        if group < len(windows):
            cache.forget(tables[group][index])
    there = [{i for i, b in enumerate(t) if cache.pool.is_keyed(b)} for t in tables]

    def serves(group: int, length: int) -> bool:
        window = windows[group]
        position = length * BLOCK_SIZE
        first = 0 if window is None else max(0, position - window + 1)
        return {p // BLOCK_SIZE for p in range(first, position)} <= there[group]

    best = max(
        length
        for length in range(limit + 1)
        if all(serves(group, length) for group in range(len(windows)))
    )
    assert cache.find(chain(cache), tokens, limit).num_blocks == best
