"""Native rope, KV cache and attention against the reference, on poisoned memory."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from support.native_kernels import (
    DTYPES,
    TOLERANCE,
    PagedSequences,
    isas,
    native_ops,
    reference_ops,
    relative_error,
)
from triolet_kernels.native import NativeOps
from triolet_kernels.native_kv_cache import NativeKVCache
from triolet_kernels.ops import AttentionSpec, KVCache

ISAS = isas()


@dataclasses.dataclass(frozen=True)
class Layer:
    """One attention layer with its weights, in float32."""

    spec: AttentionSpec
    cos: Tensor | None
    sin: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    sinks: Tensor | None


def make_layer(spec: AttentionSpec, *, norm: bool, sinks: bool, positions: int = 1400) -> Layer:
    generator = torch.Generator().manual_seed(7)
    angles = torch.rand(positions, max(1, spec.rotary_dim // 2), generator=generator) * 6
    rotary = spec.rotary_dim > 0
    weights = [(torch.randn(spec.head_dim, generator=generator) / 8).bfloat16() for _ in range(2)]
    return Layer(
        spec,
        angles.cos() if rotary else None,
        angles.sin() if rotary else None,
        weights[0] if norm else None,
        weights[1] if norm else None,
        torch.randn(spec.num_heads, generator=generator) if sinks else None,
    )


def poisoned_cache(ops: NativeOps, sequences: PagedSequences, spec: AttentionSpec) -> NativeKVCache:
    cache = ops.allocate_kv(sequences.num_blocks, sequences.block_size, spec)
    assert isinstance(cache, NativeKVCache)
    cache.keys.fill_(float("nan"))
    cache.values.fill_(float("nan"))
    return cache


def run(
    ops: NativeOps,
    layer: Layer,
    sequences: PagedSequences,
    cache: KVCache,
    parts: list[tuple[int, int, int]],
) -> Tensor:
    qkv, batch = sequences.batch(parts)
    q_norm = None if layer.q_norm is None else layer.q_norm.to(ops.dtype)
    k_norm = None if layer.k_norm is None else layer.k_norm.to(ops.dtype)
    q = ops.rope_and_store(
        qkv.clone(), layer.spec, batch, cache, layer.cos, layer.sin, q_norm, k_norm
    )
    return ops.paged_attention(q, layer.spec, batch, cache, layer.sinks)


def expected(layer: Layer, sequences: PagedSequences, parts: list[tuple[int, int, int]]) -> Tensor:
    ops = reference_ops()
    cache = ops.allocate_kv(sequences.num_blocks, sequences.block_size, layer.spec)

    def norm(weight: Tensor | None) -> Tensor | None:
        return None if weight is None else weight.to(torch.float32)

    def step(some: list[tuple[int, int, int]]) -> Tensor:
        qkv, batch = sequences.batch(some)
        wide = qkv.to(torch.float32)
        q = ops.rope_and_store(
            wide,
            layer.spec,
            batch,
            cache,
            layer.cos,
            layer.sin,
            norm(layer.q_norm),
            norm(layer.k_norm),
        )
        return ops.paged_attention(q, layer.spec, batch, cache, layer.sinks)

    before = [(s, 0, begin) for s, begin, _ in parts if begin > 0]
    if before:
        step(before)
    return step(parts)


@st.composite
def cases(draw: st.DrawFn) -> tuple[AttentionSpec, list[int], list[int], int]:
    """A layer, lengths of sequences, tokens of each in the last step, a block size."""
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    group = draw(st.integers(1, 16 // kv_heads))
    head_dim = draw(st.sampled_from([32, 40, 64, 72, 80, 96, 128, 256]))
    spec = AttentionSpec(
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        window=draw(st.none() | st.integers(1, 200)),
        softcap=draw(st.none() | st.just(15.0)),
        rotary_dim=draw(st.sampled_from([0, head_dim, head_dim // 4 * 2])),
        norm_offset=draw(st.sampled_from([0.0, 1.0])),
    )
    lengths = draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    new = [draw(st.integers(1, min(length, 90)) | st.just(1)) for length in lengths]
    return spec, lengths, new, draw(st.sampled_from([8, 16, 32, 64, 128]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=15, deadline=None)
@given(case=cases(), norm=st.booleans(), sinks=st.booleans(), threads=st.integers(1, 4))
def test_attention_equals_the_reference(
    isa: str,
    dtype: torch.dtype,
    case: tuple[AttentionSpec, list[int], list[int], int],
    norm: bool,
    sinks: bool,
    threads: int,
) -> None:
    spec, lengths, new, block_size = case
    ops = native_ops(dtype, isa, threads)
    layer = make_layer(spec, norm=norm, sinks=sinks)
    sequences = PagedSequences(lengths, block_size, spec, seed=3, dtype=dtype)
    cache = poisoned_cache(ops, sequences, spec)
    parts = [(s, n - k, n) for s, (n, k) in enumerate(zip(lengths, new, strict=True))]
    before = [(s, 0, begin) for s, begin, _ in parts if begin > 0]
    if before:
        run(ops, layer, sequences, cache, before)
    result = run(ops, layer, sequences, cache, parts)
    assert relative_error(result, expected(layer, sequences, parts)) < 2 * TOLERANCE[dtype]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 70])
def test_bits_do_not_depend_on_chunks_company_or_threads(
    isa: str, dtype: torch.dtype, window: int | None
) -> None:
    """Prefill whole, in odd chunks, token by token at the end, alone or in a batch."""
    spec = AttentionSpec(6, 2, 64, 0.125, window=window, rotary_dim=64)
    layer = make_layer(spec, norm=True, sinks=True)
    sequences = PagedSequences([1100, 37, 530], 16, spec, seed=5, dtype=dtype)
    ops = native_ops(dtype, isa, 1)
    whole = [
        run(ops, layer, sequences, poisoned_cache(ops, sequences, spec), [(s, 0, n)])
        for s, n in enumerate(sequences.lengths)
    ]
    for threads in (1, 2, 3):
        ops = native_ops(dtype, isa, threads)
        cache = poisoned_cache(ops, sequences, spec)
        done = [0, 0, 0]
        for sizes in (
            [1, 1, 100],
            [63, 5, 1],
            [64, 30, 64],
            [500, 1, 300],
            [471, 0, 1],
            [1, 0, 64],
        ):
            parts = [(s, done[s], done[s] + k) for s, k in enumerate(sizes) if k > 0]
            result = run(ops, layer, sequences, cache, parts)
            row = 0
            for s, begin, end in parts:
                part = result[row : row + end - begin]
                assert torch.equal(part, whole[s][begin:end]), (threads, s, begin, end)
                row += end - begin
                done[s] = end
        # Only one sequence, one token, more than one span: cut among threads.
        last = run(ops, layer, sequences, cache, [(0, 1099, 1100)])
        assert torch.equal(last, whole[0][1099:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_and_values_of_other_slots_are_left_alone(dtype: torch.dtype) -> None:
    ops = native_ops(dtype, ISAS[0], 2)
    spec = AttentionSpec(2, 2, 32, 1.0)
    sequences = PagedSequences([9], 8, spec, seed=0, dtype=dtype)
    cache = poisoned_cache(ops, sequences, spec)
    qkv, batch = sequences.batch([(0, 0, 9)])
    q = ops.rope_and_store(qkv, spec, batch, cache, None, None)
    assert torch.equal(q.view(9, -1), qkv[:, :64])
    assert int(cache.keys.isfinite().sum()) == 9 * 64
    assert int(cache.values.isfinite().sum()) == 9 * 64


@pytest.mark.parametrize("isa", ISAS)
def test_block_ids_before_the_window_are_never_followed(isa: str) -> None:
    ops = native_ops(torch.bfloat16, isa)
    spec = AttentionSpec(4, 1, 64, 0.125, window=20)
    layer = make_layer(spec, norm=False, sinks=False)
    sequences = PagedSequences([200], 16, spec, seed=1, dtype=torch.bfloat16)
    cache = poisoned_cache(ops, sequences, spec)
    run(ops, layer, sequences, cache, [(0, 0, 199)])
    before = run(ops, layer, sequences, cache, [(0, 199, 200)])
    sequences.block_table[0, : 180 // 16] = -5
    assert torch.equal(run(ops, layer, sequences, cache, [(0, 199, 200)]), before)


def test_bad_indices_raise_instead_of_reading_beyond_memory() -> None:
    ops = native_ops(torch.float32, ISAS[0])
    spec = AttentionSpec(2, 1, 32, 1.0, rotary_dim=32)
    layer = make_layer(spec, norm=False, sinks=False, positions=8)
    sequences = PagedSequences([4], 8, spec, seed=0, dtype=torch.float32)
    cache = poisoned_cache(ops, sequences, spec)
    qkv, batch = sequences.batch([(0, 0, 4)])
    far = dataclasses.replace(batch, slots=batch.slots + 1000)
    with pytest.raises(IndexError, match=r"slot .* is not in 0"):
        ops.rope_and_store(qkv, spec, far, cache, layer.cos, layer.sin)
    far = dataclasses.replace(batch, positions=batch.positions + 8)
    with pytest.raises(IndexError, match=r"position 8 is not in 0\.\.7"):
        ops.rope_and_store(qkv, spec, far, cache, layer.cos, layer.sin)
    q = ops.rope_and_store(qkv, spec, batch, cache, layer.cos, layer.sin)
    far = dataclasses.replace(batch, block_table=batch.block_table + 1000)
    with pytest.raises(IndexError, match="block id"):
        ops.paged_attention(q, spec, far, cache)
    with pytest.raises(ValueError, match=r"cos must be contiguous float32 \[positions, 16\]"):
        ops.rope_and_store(qkv, spec, batch, cache, None, None)


def test_unsupported_shapes_are_refused() -> None:
    ops = native_ops(torch.float32, ISAS[0])
    with pytest.raises(ValueError, match="block_size"):
        ops.allocate_kv(1, 12, AttentionSpec(1, 1, 64, 1.0))
    with pytest.raises(ValueError, match="head_dim"):
        ops.allocate_kv(1, 16, AttentionSpec(1, 1, 60, 1.0))
    with pytest.raises(ValueError, match="num_heads"):
        ops.allocate_kv(1, 16, AttentionSpec(3, 2, 64, 1.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_per_block_are_what_the_cache_takes(dtype: torch.dtype) -> None:
    ops = native_ops(dtype, ISAS[0])
    spec = AttentionSpec(6, 3, 80, 1.0)
    cache = ops.allocate_kv(5, 32, spec)
    assert isinstance(cache, NativeKVCache)
    assert cache.num_blocks == 5
    taken = sum(t.numel() * t.element_size() for t in (cache.keys, cache.values))
    assert taken == 5 * ops.kv_bytes_per_block(32, spec)
