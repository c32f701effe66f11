"""Groups are equal, every layer has a place of its own, and windows save what they should."""

import pytest
from hypothesis import given, strategies as st

from triolet.errors import ConfigError
from triolet.messages.runner_to_scheduler import KVGroup
from triolet.runner.kv_layout import GROUPS_MAX, KVLayout, blocks_needed, kv_layout, plan_kv_cache

windows = st.lists(st.sampled_from([None, 16, 64, 512]), min_size=1, max_size=48)
GEMMA_3_270M = [None if (layer + 1) % 6 == 0 else 512 for layer in range(18)]


def test_a_uniform_model_has_one_group() -> None:
    layout = kv_layout([None] * 30, 4096)
    assert layout.groups == (KVGroup(num_layers=30, window=None),)
    assert layout.places == tuple((0, slot) for slot in range(30))


def test_gemma_3_270m_has_one_full_group_and_five_with_a_window() -> None:
    layout = kv_layout(GEMMA_3_270M, 32768)
    assert [group.window for group in layout.groups] == [None, 512, 512, 512, 512, 512]
    assert layout.num_slots == 3
    assert layout.places[5] == (0, 0)


def test_windows_need_at_most_35_percent_of_full_kv_at_4k() -> None:
    layout = kv_layout(GEMMA_3_270M, 32768)
    full = len(layout.groups) * 4096 // 16
    assert blocks_needed(layout.groups, 4096, 16, max_step_tokens=1) <= 0.35 * full


def test_a_window_as_long_as_the_context_is_none() -> None:
    assert kv_layout([512, None], 512).groups == (KVGroup(num_layers=2, window=None),)
    assert len(kv_layout([512, None], 513).groups) == 2


@given(windows)
def test_every_layer_has_its_own_place_in_a_group_of_its_window(
    layers: list[int | None],
) -> None:
    layout = kv_layout(layers, 4096)
    assert len(set(layout.places)) == len(layers)
    for window, (group, slot) in zip(layers, layout.places, strict=True):
        assert layout.groups[group].window == window
        assert 0 <= slot < layout.num_slots
    assert len({group.num_layers for group in layout.groups}) == 1
    assert len(layout.groups) <= max(GROUPS_MAX, len(set(layers)))


def test_odd_counts_leave_few_slots_empty() -> None:
    layout = kv_layout([None if (layer + 1) % 6 == 0 else 1024 for layer in range(34)], 32768)
    assert len(layout.groups) <= GROUPS_MAX
    assert layout.num_slots * len(layout.groups) <= 1.05 * 34


@given(windows, st.integers(1, 300), st.integers(1, 64))
def test_needed_blocks_cover_what_a_scheduler_holds(
    layers: list[int | None], length: int, step_tokens: int
) -> None:
    """Simulated: a block is held from the step that writes it until it has left the window."""
    groups = kv_layout(layers, 4096).groups
    most = 0
    for start in range(0, length, step_tokens):
        end = min(length, start + step_tokens)
        held = 0
        for group in groups:
            first = 0 if group.window is None else max(0, start - group.window + 1)
            held += -(-end // 8) - first // 8
        most = max(most, held)
    assert most <= blocks_needed(groups, length, 8, step_tokens)


def plan(
    layout: KVLayout, num_blocks: int, max_model_len: int = 1024, max_num_seqs: int = 4
) -> tuple[int, int]:
    result = plan_kv_cache(
        layout,
        num_blocks=num_blocks,
        block_size=16,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_step_tokens=256,
    )
    return result.num_blocks, result.max_model_len


def test_blocks_beyond_what_all_sequences_can_use_are_not_taken() -> None:
    uniform = kv_layout([None] * 4, 1024)
    assert plan(uniform, 10_000) == (5 * 64, 1024)
    assert plan(uniform, 100) == (100, 1024)


@given(windows, st.integers(0, 2000))
def test_the_longest_context_that_fits_is_kept(layers: list[int | None], num_blocks: int) -> None:
    layout = kv_layout(layers, 1024)
    if blocks_needed(layout.groups, 16, 16, 256) > num_blocks:
        with pytest.raises(ConfigError) as caught:
            plan(layout, num_blocks)
        assert caught.value.param == "kv_cache_memory_bytes"
        return
    planned, longest = plan(layout, num_blocks)
    assert planned <= num_blocks
    assert blocks_needed(layout.groups, longest, 16, 256) <= planned
    if longest < 1024:
        assert blocks_needed(layout.groups, longest + 1, 16, 256) > num_blocks
    assert plan(layout, planned)[1] == longest  # a restart with these blocks


def test_no_room_for_one_block_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="room for 3 blocks"):
        plan(kv_layout(GEMMA_3_270M, 1024), 3)
