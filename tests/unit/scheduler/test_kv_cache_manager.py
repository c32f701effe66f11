from __future__ import annotations

from support.kv_runner import runner_info
from triolet.scheduler.kv_cache_manager import KVCacheManager, SequenceBlocks


def make_kv(
    num_blocks: int,
    windows: tuple[int | None, ...] = (None,),
    *,
    block_size: int = 4,
    caching: bool = True,
) -> KVCacheManager:
    return KVCacheManager(
        runner_info(num_blocks, block_size, windows),
        enable_prefix_caching=caching,
        model_key="m",
        secret=b"s",
    )


def compute(kv: KVCacheManager, blocks: SequenceBlocks, tokens: list[int], chunk: int = 4) -> None:
    """Compute all tokens in chunks, one step in flight."""
    done = blocks.num_registered * kv.block_size
    while done < len(tokens):
        got = kv.extend(blocks, done, done, min(chunk, len(tokens) - done))
        assert got
        done += got
        kv.register(blocks, tokens, done)


def test_tables_grow_by_the_block() -> None:
    kv = make_kv(8)
    blocks = kv.sequence_blocks(None)
    assert kv.extend(blocks, 0, 0, 5) == 5
    assert blocks.num_blocks == 2
    assert kv.extend(blocks, 5, 5, 3) == 3
    assert kv.pool.num_used == 2
    assert kv.extend(blocks, 8, 8, 1) == 1
    assert kv.pool.num_used == 3


def test_extend_gives_what_fits_and_zero_is_not_now() -> None:
    kv = make_kv(3)
    first, second = kv.sequence_blocks(None), kv.sequence_blocks(None)
    assert kv.extend(first, 0, 0, 5) == 5
    assert kv.extend(second, 0, 0, 9) == 4
    assert kv.extend(second, 4, 4, 1) == 0
    assert kv.extend(first, 5, 5, 9) == 3, "room left in its last block"
    kv.check_integrity([first, second])


def test_a_finished_sequence_is_found_again_but_for_its_last_token() -> None:
    kv = make_kv(8)
    tokens = list(range(8))
    blocks = kv.sequence_blocks(None)
    compute(kv, blocks, tokens)
    kv.release(blocks)
    assert kv.pool.num_cached == 2
    again = kv.sequence_blocks(None)
    assert kv.find_prefix(again, tokens).num_blocks == 1
    assert kv.find_prefix(again, [*tokens, 9]).num_blocks == 2
    assert kv.find_prefix(again, tokens, use_cache=False).num_blocks == 0
    kv.adopt(again, kv.find_prefix(again, tokens))
    assert kv.pool.num_used == 1
    kv.check_integrity([again])


def test_without_prefix_caching_nothing_is_found() -> None:
    kv = make_kv(8, caching=False)
    blocks = kv.sequence_blocks(None)
    compute(kv, blocks, list(range(8)))
    kv.release(blocks)
    assert kv.pool.num_cached == 0
    assert kv.find_prefix(kv.sequence_blocks(None), list(range(9))).num_blocks == 0


def test_the_tail_of_a_released_sequence_is_evicted_first() -> None:
    kv = make_kv(4, (None, None))
    tokens = list(range(8))
    blocks = kv.sequence_blocks(None)
    compute(kv, blocks, tokens)
    kv.release(blocks)
    assert kv.pool.take(2) is not None
    assert kv.find_prefix(kv.sequence_blocks(None), [*tokens, 9]).num_blocks == 1


def test_blocks_that_left_the_window_are_given_back() -> None:
    kv = make_kv(64, (None, 6))
    blocks = kv.sequence_blocks(None)
    compute(kv, blocks, list(range(41)), chunk=1)
    assert blocks.first_held == [0, 8]
    assert kv.pool.num_used == 11 + 3
    kv.check_integrity([blocks])


def test_gemma_shape_at_4k_needs_a_third_of_the_memory() -> None:
    """gemma-3-270m: 15 layers with window 512 and 3 without make 6 groups of 3."""
    kv = make_kv(4096, (512,) * 5 + (None,), block_size=16)
    blocks = kv.sequence_blocks(None)
    compute(kv, blocks, list(range(4096)), chunk=16)
    assert kv.pool.num_used <= 0.35 * 6 * 256


def test_when_blocks_are_short_those_of_steps_in_flight_leave_the_window_too() -> None:
    kv = make_kv(4, (5,), block_size=2)
    blocks = kv.sequence_blocks(None)
    assert kv.extend(blocks, 0, 0, 8) == 8
    # 8 tokens are in flight, none confirmed: of their four blocks the first two are behind.
    assert kv.extend(blocks, 8, 0, 2) == 2
    assert blocks.first_held == [2]


def test_capacity_is_what_one_sequence_can_really_reach() -> None:
    for windows in [(None,), (None, 3), (None, 9, 2), (None, None)]:
        for num_blocks in range(2 * len(windows), 30):
            kv = make_kv(num_blocks, windows, block_size=2)
            blocks = kv.sequence_blocks(None)
            reached = 0
            while kv.extend(blocks, reached, reached, 1):
                reached += 1
            assert kv.capacity_tokens == reached, (windows, num_blocks)


def test_windows_alone_have_no_limit_of_length() -> None:
    assert make_kv(3, (5,), block_size=2).capacity_tokens > 10**9
    assert make_kv(2, (5,), block_size=2).capacity_tokens == 4


def test_a_fork_shares_full_blocks_and_outlives_its_parent() -> None:
    kv = make_kv(16, (None, 6))
    tokens = list(range(11))
    parent, child = kv.sequence_blocks(None), kv.sequence_blocks(None)
    compute(kv, parent, tokens)
    used = kv.pool.num_used
    assert kv.fork(parent, child, 10)
    assert child.num_blocks == 2
    assert kv.pool.num_used == used
    kv.check_integrity([parent, child])
    kv.release(parent)
    kv.check_integrity([child])
    assert kv.pool.num_used == 4


def test_a_fork_from_blocks_that_left_the_window_is_refused() -> None:
    kv = make_kv(64, (3,))
    parent, child = kv.sequence_blocks(None), kv.sequence_blocks(None)
    compute(kv, parent, list(range(40)), chunk=1)
    assert not kv.fork(parent, child, 12)
    assert child.num_blocks == 0
    kv.check_integrity([parent])


def test_blocks_after_a_stop_are_not_found() -> None:
    kv = make_kv(16)
    tokens = list(range(13))
    blocks = kv.sequence_blocks(None)
    compute(kv, blocks, tokens)
    kv.forget_after(blocks, 6)
    kv.release(blocks)
    assert kv.find_prefix(kv.sequence_blocks(None), tokens).num_blocks == 1
