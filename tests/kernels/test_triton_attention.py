"""paged_attention (paged_decode and paged_prefill) in Triton equals the reference.

Memory that no row attends to is NaN in every test, and block tables end in ids far outside the
cache: a kernel that loads either cannot pass.
"""

import dataclasses

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from typing_extensions import override

from support.paged import BlockTables, chunks
from support.triton_kernels import (
    TOLERANCE,
    assert_close,
    filled_caches,
    interpreted,
    reference_ops,
    triton_ops,
)
from triolet_kernels.ops import AttentionBatch, AttentionSpec
from triolet_kernels.triton import paged_decode
from triolet_kernels.triton.kv_cache import BlockCache

pytestmark = interpreted
DTYPES = list(TOLERANCE)
Rows = list[tuple[int, int, int]]


def queries(batch: AttentionBatch, spec: AttentionSpec, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(batch.positions), spec.num_heads, spec.head_dim)
    return torch.randn(shape, generator=generator).to(dtype)


def check(
    spec: AttentionSpec,
    rows: Rows,
    block_size: int = 8,
    dtype: torch.dtype = torch.float32,
    *,
    sinks: Tensor | None = None,
    batch_invariant: bool = False,
    seed: int = 0,
) -> None:
    """Compare a batch of (sequence, tokens before, tokens of this step)."""
    num_blocks = sum((start + count) // block_size + 1 for _, start, count in rows) + 1
    batch = BlockTables(num_blocks, block_size, seed).batch(rows)
    blocks, slots = filled_caches(spec, batch, num_blocks, block_size, dtype, seed)
    q = queries(batch, spec, dtype, seed + 1)
    ops = triton_ops(dtype, batch_invariant=batch_invariant)
    result = ops.paged_attention(q, spec, batch, blocks, sinks)
    expected = reference_ops(torch.float32).paged_attention(
        q.float(), spec, batch, dataclasses.replace(slots), sinks
    )
    assert_close(result, expected, dtype)


SPEC = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25)


@settings(max_examples=30, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    heads=st.sampled_from([(1, 1), (4, 1), (6, 2), (7, 1)]),
    head_dim=st.sampled_from([8, 16, 24, 64]),
    block_size=st.sampled_from([8, 16, 64]),
    window=st.sampled_from([None, 1, 5, 40]),
    softcap=st.sampled_from([None, 2.0]),
    has_sinks=st.booleans(),
    batch_invariant=st.booleans(),
    starts=st.lists(st.integers(0, 150), min_size=1, max_size=3),
    counts=st.lists(st.sampled_from([1, 1, 2, 9, 70]), min_size=3, max_size=3),
    seed=st.integers(0, 100),
)
def test_any_batch_equals_the_reference(
    dtype: torch.dtype,
    heads: tuple[int, int],
    head_dim: int,
    block_size: int,
    window: int | None,
    softcap: float | None,
    has_sinks: bool,
    batch_invariant: bool,
    starts: list[int],
    counts: list[int],
    seed: int,
) -> None:
    spec = AttentionSpec(*heads, head_dim, head_dim**-0.5, window=window, softcap=softcap)
    rows = [(i, start, counts[i]) for i, start in enumerate(starts)]
    sinks = torch.linspace(-2, 3, heads[0]) if has_sinks else None
    check(spec, rows, block_size, dtype, sinks=sinks, batch_invariant=batch_invariant, seed=seed)


@pytest.mark.parametrize("window", [None, 700])
def test_contexts_of_several_splits(window: int | None) -> None:
    """One split, exactly one, two with one token in the last: beside each other."""
    lengths = (1, 512, 513, 1200)
    rows: Rows = [(i, length - 1, 1) for i, length in enumerate(lengths)]
    check(dataclasses.replace(SPEC, window=window), rows, block_size=64)


def test_contexts_too_long_for_the_shortest_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than SPLITS_MAX splits of the shortest length: the splits are longer then."""
    monkeypatch.setattr(paged_decode, "SPLIT_TOKENS_MIN", 16)
    monkeypatch.setattr(paged_decode, "SPLITS_MAX", 4)
    check(SPEC, [(0, 399, 1), (1, 64, 1), (2, 3, 1)], block_size=16)


def test_few_programs_walk_over_many_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program takes each second split, and the bits are those of one program each."""
    monkeypatch.setattr(paged_decode, "SPLIT_TOKENS_MIN", 64)
    batch = BlockTables(64, 8).batch([(0, 330, 1), (1, 63, 1)])
    blocks, _ = filled_caches(SPEC, batch, 64, 8, torch.float32, 0)
    q = queries(batch, SPEC, torch.float32, 1)
    many = triton_ops().paged_attention(q, SPEC, batch, blocks)
    monkeypatch.setattr(paged_decode, "_PROGRAMS_WANTED", 8)
    few = triton_ops().paged_attention(q, SPEC, batch, blocks)
    assert torch.equal(many, few)


def test_a_decode_has_the_same_bits_in_any_batch() -> None:
    spec = dataclasses.replace(SPEC, window=None)
    tables = BlockTables(200, 8)
    together = tables.batch([(0, 100, 1), (1, 600, 1), (2, 7, 1)])
    blocks, _ = filled_caches(spec, together, 200, 8, torch.float32, 0)
    q = queries(together, spec, torch.float32, 1)
    ops = triton_ops()
    result = ops.paged_attention(q, spec, together, blocks)
    for i, start in enumerate((100, 600, 7)):
        alone = ops.paged_attention(q[i : i + 1], spec, tables.batch([(i, start, 1)]), blocks)
        assert torch.equal(alone[0], result[i])


def test_batch_invariant_rows_do_not_depend_on_how_a_prompt_is_cut() -> None:
    spec = dataclasses.replace(SPEC, window=30)
    tables = BlockTables(30, 8)
    whole = tables.batch([(0, 0, 100)])
    blocks, _ = filled_caches(spec, whole, 30, 8, torch.float32, 0)
    q = queries(whole, spec, torch.float32, 1)
    ops = triton_ops(batch_invariant=True)
    expected = ops.paged_attention(q, spec, whole, blocks)
    for size in (37, 64):
        for start, count in chunks(100, size):
            batch = tables.batch([(0, start, count)])
            part = ops.paged_attention(q[start : start + count], spec, batch, blocks)
            assert torch.equal(part, expected[start : start + count])
    last = ops.paged_attention(q[99:], spec, tables.batch([(0, 99, 1)]), blocks)
    assert torch.equal(last[0], expected[99])


def test_offsets_need_64_bits() -> None:
    """A block id whose element offset does not fit 32 bits.

    The cache is small, but says that its memory begins so much lower that the ids of its blocks
    are that much higher: an offset cut to 32 bits is an address that is nobody's.
    """
    block_size, spec = 128, AttentionSpec(2, 1, 512, 512**-0.5)
    far = (1 << 31) // (block_size * spec.head_dim) + 1
    batch = BlockTables(2, block_size).batch([(0, 4, 1)])
    blocks, slots = filled_caches(spec, batch, 2, block_size, torch.float32, 0)
    moved = dataclasses.replace(batch, block_table=batch.block_table + far)
    q = queries(batch, spec, torch.float32, 1)
    expected = reference_ops().paged_attention(q, spec, batch, slots)

    class Lower(Tensor):
        @override
        def data_ptr(self) -> int:
            return super().data_ptr() - far * block_size * spec.head_dim * self.element_size()

    cache = BlockCache(blocks.keys.as_subclass(Lower), blocks.values.as_subclass(Lower), block_size)
    for batch_invariant in (False, True):
        ops = triton_ops(batch_invariant=batch_invariant)
        assert_close(ops.paged_attention(q, spec, moved, cache), expected, torch.float32)


def test_shapes_that_do_not_fit_are_refused() -> None:
    batch = BlockTables(2, 8).batch([(0, 0, 2)])
    ops = triton_ops()
    with pytest.raises(ValueError, match=r"\[T, 4, 16\]"):
        ops.paged_attention(torch.zeros(2, 4, 8), SPEC, batch, ops.allocate_kv(2, 8, SPEC))
