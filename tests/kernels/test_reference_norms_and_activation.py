"""Norms, gated activations and rotation against formulas in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from support.paged import BlockTables
from triolet_kernels.elementwise import map_in_place
from triolet_kernels.ops import Activation, AttentionSpec
from triolet_kernels.reference.activation import gated_activation
from triolet_kernels.reference.kv_cache import SlotCache, bytes_per_block
from triolet_kernels.reference.reference_ops import ReferenceOps
from triolet_kernels.reference.rms_norm import rms_norm
from triolet_kernels.reference.rotary import rotate

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}
KINDS: tuple[Activation, ...] = ("silu", "gelu_tanh", "gelu")


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def error(result: Tensor, oracle: Tensor) -> float:
    return float((result.double() - oracle).norm() / oracle.norm())


def norm_oracle(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * (weight.double() + offset)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(5, 33), (3, 4, 16)])
def test_rms_norm(dtype: torch.dtype, offset: float, shape: tuple[int, ...]) -> None:
    x, weight = randn(*shape).to(dtype), randn(shape[-1], seed=1).to(dtype)
    result = rms_norm(x, weight, 1e-2, offset)
    assert result.dtype == dtype
    assert error(result, norm_oracle(x, weight, 1e-2, offset)) < TOLERANCE[dtype]


def test_fused_norms_add_to_the_residual_in_place() -> None:
    ops = ReferenceOps(CPU, torch.float32)
    x, residual, inner, outer = (
        randn(4, 32),
        randn(4, 32, seed=1),
        randn(32, seed=2),
        randn(32, seed=3),
    )
    stream = residual.clone()
    result = ops.add_rms_norm(x, stream, outer, 1e-5)
    torch.testing.assert_close(stream, residual + x)
    torch.testing.assert_close(result, rms_norm(residual + x, outer, 1e-5))
    stream = residual.clone()
    result = ops.norm_add_rms_norm(x, stream, inner, outer, 1e-5, 1.0)
    expected = residual + rms_norm(x, inner, 1e-5, 1.0)
    torch.testing.assert_close(stream, expected)
    torch.testing.assert_close(result, rms_norm(expected, outer, 1e-5, 1.0))


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("kind", "formula"), [("silu", silu), ("gelu_tanh", gelu_tanh), ("gelu", gelu)]
)
@pytest.mark.parametrize("invariant", [False, True])
def test_gated_activation(
    dtype: torch.dtype, kind: Activation, formula: Callable[[Tensor], Tensor], invariant: bool
) -> None:
    gate_up = (3 * randn(5, 2 * 37)).to(dtype)
    result = gated_activation(gate_up, kind, batch_invariant=invariant)
    wide = gate_up.double()
    assert result.dtype == dtype
    assert error(result, formula(wide[:, :37]) * wide[:, 37:]) < TOLERANCE[dtype]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_activation_of_a_row_is_bitwise_the_same_in_every_batch(
    kind: Activation, threads: int
) -> None:
    torch.set_num_threads(threads)
    gate_up = randn(70, 2 * 1001)
    alone = torch.cat([gated_activation(row[None], kind, batch_invariant=True) for row in gate_up])
    for num_rows in (2, 33, 70):
        result = gated_activation(gate_up[:num_rows], kind, batch_invariant=True)
        assert torch.equal(result, alone[:num_rows])


@pytest.mark.parametrize("function", [Tensor.exp_, Tensor.tanh_], ids=["exp", "tanh"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_elementwise_result_depends_on_the_element_alone(
    function: Callable[[Tensor], Tensor], threads: int
) -> None:
    torch.set_num_threads(threads)
    x = randn(70_001)
    whole = map_in_place(function, x.clone())
    for start, stop in ((0, 1), (1, 130), (17, 40_000), (70_000, 70_001)):
        assert torch.equal(map_in_place(function, x[start:stop].clone()), whole[start:stop])


@settings(max_examples=25, deadline=None)
@given(size=st.integers(0, 400).map(lambda n: n * 331))
def test_map_in_place_reaches_every_element_once(size: int) -> None:
    x = randn(size)
    expected = x + 1
    assert torch.equal(map_in_place(lambda chunk: chunk.add_(1), x), expected)


@pytest.mark.parametrize("rotary_dim", [4, 6, 16])
def test_rotation_turns_pairs_and_keeps_their_length(rotary_dim: int) -> None:
    half = rotary_dim // 2
    angles = randn(5, half, seed=1)
    x = randn(5, 3, 16)
    result = rotate(x, angles.cos(), angles.sin())
    pairs = torch.complex(x[..., :half].double(), x[..., half:rotary_dim].double())
    turned = pairs * torch.exp(1j * angles.double())[:, None, :]
    torch.testing.assert_close(result[..., :half].double(), turned.real, rtol=0, atol=1e-6)
    torch.testing.assert_close(
        result[..., half:rotary_dim].double(), turned.imag, rtol=0, atol=1e-6
    )
    assert torch.equal(result[..., rotary_dim:], x[..., rotary_dim:])


@pytest.mark.parametrize("with_norm", [False, True])
def test_rope_and_store_norms_rotates_and_writes_only_its_slots(with_norm: bool) -> None:
    spec = AttentionSpec(
        num_heads=4, num_kv_heads=2, head_dim=8, scale=1.0, rotary_dim=6,
        norm_eps=1e-5, norm_offset=1.0,
    )  # fmt: skip
    ops = ReferenceOps(CPU, torch.float32)
    cache = ops.allocate_kv(6, 8, spec)
    assert isinstance(cache, SlotCache)
    cache.keys.fill_(7.0)
    cache.values.fill_(7.0)
    batch = BlockTables(6, 8).batch([(0, 0, 10), (1, 0, 3)])
    qkv = randn(13, 8 * 8)
    norms = (randn(8, seed=4), randn(8, seed=5)) if with_norm else (None, None)
    angles = torch.outer(torch.arange(20.0), torch.tensor([1.0, 0.3, 0.1]))
    cos, sin = angles.cos(), angles.sin()
    query = ops.rope_and_store(qkv.clone(), spec, batch, cache, cos, sin, *norms)
    heads = qkv.view(13, 8, 8)
    q, k, v = heads[:, :4], heads[:, 4:6], heads[:, 6:]
    if norms[0] is not None and norms[1] is not None:
        q, k = rms_norm(q, norms[0], 1e-5, 1.0), rms_norm(k, norms[1], 1e-5, 1.0)
    row_cos, row_sin = cos[batch.positions], sin[batch.positions]
    torch.testing.assert_close(query, rotate(q, row_cos, row_sin))
    torch.testing.assert_close(
        cache.keys[:, batch.slots].transpose(0, 1), rotate(k, row_cos, row_sin)
    )
    assert torch.equal(cache.values[:, batch.slots].transpose(0, 1), v)
    untouched = torch.ones(6 * 8, dtype=torch.bool)
    untouched[batch.slots] = False
    assert bool((cache.keys[:, untouched] == 7.0).all())
    assert bool((cache.values[:, untouched] == 7.0).all())


def test_angles_of_the_wrong_size_are_refused() -> None:
    spec = AttentionSpec(num_heads=1, num_kv_heads=1, head_dim=8, scale=1.0, rotary_dim=8)
    ops = ReferenceOps(CPU, torch.float32)
    batch = BlockTables(2, 8).batch([(0, 0, 2)])
    cache = ops.allocate_kv(2, 8, spec)
    with pytest.raises(ValueError, match="rotary_dim 8 needs cos and sin"):
        ops.rope_and_store(randn(2, 24), spec, batch, cache, randn(4, 2), randn(4, 2))


def test_cache_takes_the_bytes_it_says() -> None:
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=24, scale=1.0)
    ops = ReferenceOps(CPU, torch.bfloat16)
    cache = ops.allocate_kv(5, 16, spec)
    assert isinstance(cache, SlotCache)
    assert cache.num_blocks == 5
    taken = cache.keys.nbytes + cache.values.nbytes
    assert (
        taken
        == 5 * ops.kv_bytes_per_block(16, spec)
        == 5 * bytes_per_block(16, spec, torch.bfloat16)
    )


@pytest.mark.parametrize("head", [False, True])
def test_tied_embedding_looks_up_and_projects(head: bool) -> None:
    ops = ReferenceOps(CPU, torch.bfloat16)
    table = randn(9, 16)
    look_up, project = ops.tied_embedding(table, head=head)
    ids = torch.tensor([3, 0, 8])
    assert torch.equal(look_up(ids), table[ids].to(torch.bfloat16))
    assert (project is not None) == head
    if project is not None:
        logits = project(look_up(ids))
        assert logits.dtype == torch.float32
        assert error(logits, table[ids].double() @ table.double().T) < 1e-2
