"""Which layers share a block table, and how many blocks there should be. Pure arithmetic.

All layers draw their KV blocks from one pool of equal blocks. Layers with the same window form
groups of equally many layers; a block of a group holds `block_size` tokens of its layers. So a
block can serve any group, and a layer with a window gives its blocks back to everybody.

    Gemma-3-270m, 3 full layers (F) and 15 with a window (W), groups of 3:

        slot 0   F0 | W0 W3 W6 W9  W12      one KV tensor per slot;
        slot 1   F1 | W1 W4 W7 W10 W13      a column is a group, with its own
        slot 2   F2 | W2 W5 W8 W11 W14      block table into the shared pool

A model with one kind of layer has one group.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from triolet.errors import ConfigError
from triolet.messages.runner_to_scheduler import KVGroup

GROUPS_MAX = 8
"""Each group costs a block table per sequence and step. Where equal groups without a gap would
be more (34 layers as 5 + 29 would be 34 groups of 1), some slots of a group stay empty."""


@attrs.frozen
class KVLayout:
    """How the layers of a model lie in the KV pool.

    Attributes:
        groups: The groups, full attention first.
        places: Per layer: index of its group, and its slot in the group.
    """

    groups: tuple[KVGroup, ...]
    places: tuple[tuple[int, int], ...]

    @property
    def num_slots(self) -> int:
        """Layers of a group: the KV tensors that are needed."""
        return self.groups[0].num_layers


@attrs.frozen
class KVPlan:
    """Size of the KV cache.

    Attributes:
        num_blocks: Blocks of the pool.
        max_model_len: Longest context one sequence can have in them.
    """

    num_blocks: int
    max_model_len: int


def kv_layout(windows: Sequence[int | None], max_model_len: int) -> KVLayout:
    """Split layers into groups of equal size.

    Args:
        windows: Per layer, tokens it attends to, the current one included; None is all.
        max_model_len: A window at least this long is no window.

    Returns:
        The layout with the fewest empty slots in at most `GROUPS_MAX` groups; among those,
        the one with the fewest groups.
    """
    assert windows, "a model without attention layers has no KV cache"
    layers_of: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        whole = window is None or window >= max_model_len
        layers_of.setdefault(None if whole else window, []).append(layer)
    kinds = sorted(layers_of.items(), key=lambda kind: (kind[0] is not None, kind[0] or 0))
    size = _group_size([len(layers) for _, layers in kinds])
    groups: list[KVGroup] = []
    places: dict[int, tuple[int, int]] = {}
    for window, layers in kinds:
        for start in range(0, len(layers), size):
            for slot, layer in enumerate(layers[start : start + size]):
                places[layer] = (len(groups), slot)
            groups.append(KVGroup(num_layers=size, window=window))
    return KVLayout(tuple(groups), tuple(places[layer] for layer in range(len(windows))))


def _group_size(counts: Sequence[int]) -> int:
    """Layers per group for so many layers of each kind."""

    def num_groups(size: int) -> int:
        return sum(-(-count // size) for count in counts)

    limit = max(GROUPS_MAX, len(counts))
    sizes = [size for size in range(1, max(counts) + 1) if num_groups(size) <= limit]
    return min(sizes, key=lambda size: (size * num_groups(size), num_groups(size)))


def blocks_needed(
    groups: Sequence[KVGroup], num_tokens: int, block_size: int, max_step_tokens: int
) -> int:
    """Blocks that one sequence holds at its largest, over all groups.

    Args:
        groups: The groups of the model.
        num_tokens: Its final length.
        block_size: Tokens per block.
        max_step_tokens: Most tokens of it that one step computes: a window's blocks are given
            back only when the step is over.
    """
    total = 0
    for group in groups:
        held = -(-num_tokens // block_size)
        if group.window is not None:
            # The earliest token in the window of the first row of the step, up to the last
            # row of it: both ends may cut through a block.
            held = min(held, -(-(group.window - 1 + max_step_tokens) // block_size) + 1)
        total += held
    return total


def plan_kv_cache(
    layout: KVLayout,
    *,
    num_blocks: int,
    block_size: int,
    max_model_len: int,
    max_num_seqs: int,
    max_step_tokens: int,
) -> KVPlan:
    """Fit the number of blocks to what can be used, and the context to the blocks.

    Args:
        layout: Of the model.
        num_blocks: Blocks the memory allows.
        block_size: Tokens per block.
        max_model_len: Longest context that is asked for.
        max_num_seqs: Sequences that run at once.
        max_step_tokens: Tokens in one step.

    Returns:
        At most the blocks that `max_num_seqs` contexts of `max_model_len` and the chunk of a
        prefill can use; a `max_model_len` that is shorter than asked for where one such
        context does not fit.

    Raises:
        ConfigError: Not even one block of tokens fits.
    """

    def needed(num_tokens: int, step_tokens: int = max_step_tokens) -> int:
        return blocks_needed(layout.groups, num_tokens, block_size, step_tokens)

    longest = max_model_len
    if needed(longest) > num_blocks:
        short, longest = 0, max_model_len  # fits, does not fit
        while longest - short > 1:
            middle = (short + longest) // 2
            short, longest = (middle, longest) if needed(middle) <= num_blocks else (short, middle)
        longest = short
    if longest < min(block_size, max_model_len):
        raise ConfigError(
            f"the KV cache has room for {num_blocks} blocks, and the shortest context takes "
            f"{needed(block_size)} ({len(layout.groups)} groups of layers, {block_size} tokens "
            "each); raise kv_cache_memory_bytes, kv_cache_tokens or kv_cache_fraction",
            param="kv_cache_memory_bytes",
        )
    # One step's tokens are shared by all sequences: only one of them can be in a large chunk.
    usable = max_num_seqs * needed(longest, step_tokens=1) + needed(longest)
    return KVPlan(min(num_blocks, usable), longest)
