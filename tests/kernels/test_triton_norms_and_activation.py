"""Norms (rms_norm), gates (activation) and rope_and_store in Triton equal the reference."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from support.paged import BlockTables
from support.triton_kernels import assert_close, interpreted, reference_ops, triton_ops
from triolet_kernels.ops import Activation, AttentionSpec
from triolet_kernels.reference.kv_cache import SlotCache
from triolet_kernels.triton.kv_cache import BlockCache

pytestmark = interpreted
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


@settings(max_examples=25, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(0, 5),
    width=st.integers(1, 300),
    offset=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 1000),
)
def test_norms_equal_the_reference(
    dtype: torch.dtype, rows: int, width: int, offset: float, seed: int
) -> None:
    ops, oracle = triton_ops(dtype), reference_ops(dtype)
    x, stream = random(rows, width, dtype=dtype, seed=seed), random(rows, width, dtype=dtype)
    weight, inner = random(width, dtype=dtype, seed=2), random(width, dtype=dtype, seed=3)
    if rows == 0:
        assert ops.rms_norm(x, weight, 1e-6, offset).shape == x.shape
        return
    assert_close(
        ops.rms_norm(x, weight, 1e-6, offset), oracle.rms_norm(x, weight, 1e-6, offset), dtype
    )
    ours, theirs = stream.clone(), stream.clone()
    assert_close(
        ops.add_rms_norm(x, ours, weight, 1e-6, offset),
        oracle.add_rms_norm(x, theirs, weight, 1e-6, offset),
        dtype,
    )
    assert_close(ours, theirs, dtype)
    ours, theirs = stream.clone(), stream.clone()
    assert_close(
        ops.norm_add_rms_norm(x, ours, inner, weight, 1e-6, offset),
        oracle.norm_add_rms_norm(x, theirs, inner, weight, 1e-6, offset),
        dtype,
    )
    assert_close(ours, theirs, dtype)


def test_norm_takes_heads_as_rows() -> None:
    x, weight = random(3, 2, 24), random(24)
    result = triton_ops().rms_norm(x, weight, 1e-5)
    assert_close(result, reference_ops().rms_norm(x, weight, 1e-5), torch.float32)


def test_shapes_that_do_not_fit_are_refused() -> None:
    ops = triton_ops()
    with pytest.raises(ValueError, match="does not fit"):
        ops.rms_norm(random(2, 8), random(7), 1e-6)
    with pytest.raises(ValueError, match="contiguous"):
        ops.rms_norm(random(8, 2).T, random(8), 1e-6)
    with pytest.raises(ValueError, match="residual"):
        ops.add_rms_norm(random(2, 8), random(3, 8), random(8), 1e-6)
    with pytest.raises(ValueError, match="contiguous"):
        ops.gated_activation(random(2, 7), "silu")


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "gelu"])
@settings(max_examples=8, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(0, 3),
    width=st.integers(1, 1100),
    spread=st.sampled_from([1.0, 30.0]),
)
def test_gates_equal_the_reference(
    kind: Activation, dtype: torch.dtype, rows: int, width: int, spread: float
) -> None:
    gate_up = (random(rows, 2 * width) * spread).to(dtype)
    result = triton_ops(dtype).gated_activation(gate_up, kind)
    if rows:
        assert_close(result, reference_ops(dtype).gated_activation(gate_up, kind), dtype)
    assert result.shape == (rows, width)


@settings(max_examples=25, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    heads=st.sampled_from([(4, 1), (2, 2), (7, 1), (6, 2)]),
    head_dim=st.sampled_from([8, 20, 64]),
    rotated=st.sampled_from([0.0, 0.5, 1.0]),
    norms=st.sampled_from(["", "q", "k", "qk"]),
    offset=st.sampled_from([0.0, 1.0]),
    block_size=st.sampled_from([8, 16]),
    seed=st.integers(0, 100),
)
def test_rope_and_store_equals_the_reference(
    dtype: torch.dtype,
    heads: tuple[int, int],
    head_dim: int,
    rotated: float,
    norms: str,
    offset: float,
    block_size: int,
    seed: int,
) -> None:
    rotary_dim = int(head_dim * rotated) // 2 * 2
    spec = AttentionSpec(
        *heads, head_dim, 1.0, rotary_dim=rotary_dim, norm_eps=1e-5, norm_offset=offset
    )
    num_blocks = 6
    batch = BlockTables(num_blocks, block_size, seed).batch([(0, 0, 5), (1, 9, 1), (2, 3, 2)])
    qkv = random(8, (heads[0] + 2 * heads[1]) * head_dim, dtype=dtype, seed=seed)
    angles = random(16, rotary_dim // 2, seed=seed + 1)
    cos, sin = (angles.cos(), angles.sin()) if rotary_dim else (None, None)
    q_norm = random(head_dim, dtype=dtype, seed=4) if "q" in norms else None
    k_norm = random(head_dim, dtype=dtype, seed=5) if "k" in norms else None
    slots = torch.full((heads[1], num_blocks * block_size, head_dim), 7.0).to(dtype)
    theirs = SlotCache(slots.clone(), slots.clone(), block_size)
    blocks = torch.full((num_blocks, heads[1], block_size, head_dim), 7.0).to(dtype)
    ours = BlockCache(blocks.clone(), blocks.clone(), block_size)
    arguments = (cos, sin, q_norm, k_norm)
    expected = reference_ops(dtype).rope_and_store(qkv.clone(), spec, batch, theirs, *arguments)
    result = triton_ops(dtype).rope_and_store(qkv.clone(), spec, batch, ours, *arguments)
    assert_close(result, expected, dtype)
    for mine, other in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
        by_slot = mine.permute(1, 0, 2, 3).reshape(other.shape)
        assert_close(by_slot, other, dtype)  # what nobody wrote is still 7


def test_rope_and_store_refuses_what_does_not_fit() -> None:
    spec = AttentionSpec(2, 1, 8, 1.0, rotary_dim=8)
    batch = BlockTables(2, 8).batch([(0, 0, 2)])
    ops = triton_ops()
    cache = ops.allocate_kv(2, 8, spec)
    with pytest.raises(ValueError, match=r"\[T, 32\]"):
        ops.rope_and_store(random(2, 30), spec, batch, cache, None, None)
    with pytest.raises(ValueError, match="needs cos and sin"):
        ops.rope_and_store(random(2, 32), spec, batch, cache, random(4, 2), random(4, 2))
    with pytest.raises(ValueError, match="larger than the 512"):
        ops.allocate_kv(2, 8, dataclasses.replace(spec, head_dim=1024))
