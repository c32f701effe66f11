"""Reference attention against float64 attention over whole sequences."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from support.paged import BlockTables, naive_attention
from triolet_kernels.ops import AttentionSpec
from triolet_kernels.reference.kv_cache import SlotCache
from triolet_kernels.reference.reference_ops import ReferenceOps

CPU = torch.device("cpu")


@dataclasses.dataclass
class Case:
    """Some sequences, each cut into steps; step i of all sequences is one batch."""

    spec: AttentionSpec
    block_size: int
    steps: list[list[int]]  # per sequence: tokens per step; 0 is absent
    dtype: torch.dtype = torch.float32
    invariant: bool = False
    sinks: bool = False


def run(case: Case, poison: bool = True) -> tuple[Tensor, Tensor]:
    """(result, oracle), [all tokens of all sequences, HQ, D]."""
    spec = case.spec
    generator = torch.Generator().manual_seed(1)
    ops = ReferenceOps(CPU, case.dtype, batch_invariant=case.invariant)
    lengths = [sum(steps) for steps in case.steps]
    blocks = sum(-(-length // case.block_size) for length in lengths) + 3
    tables = BlockTables(blocks, case.block_size)
    cache = ops.allocate_kv(blocks, case.block_size, spec)
    assert isinstance(cache, SlotCache)
    if poison:
        cache.keys.fill_(torch.nan)
        cache.values.fill_(torch.nan)
    heads = spec.num_heads + 2 * spec.num_kv_heads
    qkv = [
        torch.randn(length, heads * spec.head_dim, generator=generator).to(case.dtype)
        for length in lengths
    ]
    sinks = torch.randn(spec.num_heads, generator=generator) if case.sinks else None
    results: list[list[Tensor]] = [[] for _ in lengths]
    done = [0] * len(lengths)
    for step in range(max(map(len, case.steps))):
        rows = [
            (sequence, done[sequence], steps[step])
            for sequence, steps in enumerate(case.steps)
            if step < len(steps) and steps[step]
        ]
        batch = tables.batch(rows)
        packed = torch.cat([qkv[s][start : start + count] for s, start, count in rows])
        q = ops.rope_and_store(packed, spec, batch, cache, None, None)
        out = ops.paged_attention(q, spec, batch, cache, sinks)
        first = 0
        for sequence, _, count in rows:
            results[sequence].append(out[first : first + count])
            done[sequence] += count
            first += count
    oracle = []
    for x in qkv:
        split = x.view(len(x), heads, spec.head_dim)
        q, k, v = (
            split[:, : spec.num_heads],
            split[:, spec.num_heads : spec.num_heads + spec.num_kv_heads],
            split[:, spec.num_heads + spec.num_kv_heads :],
        )
        oracle.append(
            naive_attention(
                q, k, v, scale=spec.scale, window=spec.window, softcap=spec.softcap, sinks=sinks
            )
        )
    return torch.cat([torch.cat(parts) for parts in results]), torch.cat(oracle)


def error(result: Tensor, oracle: Tensor) -> float:
    return float((result.double() - oracle).norm() / oracle.norm())


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_equals_attention_over_whole_sequences(data: st.DataObject) -> None:
    num_kv_heads = data.draw(st.sampled_from([1, 2, 3]))
    spec = AttentionSpec(
        num_heads=num_kv_heads * data.draw(st.sampled_from([1, 2, 3, 5])),
        num_kv_heads=num_kv_heads,
        head_dim=data.draw(st.sampled_from([8, 24, 64])),
        scale=data.draw(st.sampled_from([0.2, 1.0])),
        window=data.draw(st.sampled_from([None, 1, 7, 64, 100])),
        softcap=data.draw(st.sampled_from([None, 2.0])),
    )
    step = st.integers(min_value=0, max_value=90)
    sequence = st.lists(step, min_size=1, max_size=4).filter(lambda steps: sum(steps) > 0)
    steps = data.draw(st.lists(sequence, min_size=1, max_size=4))
    # a step in which nobody runs is no batch
    width = max(map(len, steps))
    padded = [s + [0] * (width - len(s)) for s in steps]
    used = [i for i in range(width) if any(s[i] for s in padded)]
    case = Case(
        spec=spec,
        block_size=data.draw(st.sampled_from([8, 16, 128])),
        steps=[[s[i] for i in used] for s in padded],
        invariant=data.draw(st.booleans()),
        sinks=data.draw(st.booleans()),
    )
    result, oracle = run(case)
    assert error(result, oracle) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_only_the_result(dtype: torch.dtype) -> None:
    spec = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=32, scale=32**-0.5)
    result, oracle = run(Case(spec, 16, [[70, 1, 1], [3, 1, 1]], dtype=dtype))
    assert result.dtype == dtype
    assert error(result, oracle) < 4e-3


def test_memory_outside_the_context_is_never_read() -> None:
    """`run` fills the cache with NaN first: an unwritten slot that is read shows in the result."""
    spec = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=16, scale=0.25, window=20)
    result, _ = run(Case(spec, 16, [[33, 1, 1], [130, 1, 1], [1, 1]]))
    assert bool(torch.isfinite(result).all())


def test_blocks_behind_the_window_are_never_read() -> None:
    """Their table entries may point anywhere: the scheduler has given the blocks away."""
    spec = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=16, scale=0.25, window=20)
    ops = ReferenceOps(CPU, torch.float32)
    tables = BlockTables(16, 16)
    cache = ops.allocate_kv(16, 16, spec)
    generator = torch.Generator().manual_seed(3)
    prompt = torch.randn(100, 4 * 16, generator=generator)
    batch = tables.batch([(0, 0, 100)])
    ops.paged_attention(
        ops.rope_and_store(prompt, spec, batch, cache, None, None), spec, batch, cache
    )
    last = tables.batch([(0, 100, 1)])
    row = torch.randn(1, 4 * 16, generator=generator)
    expected = ops.paged_attention(
        ops.rope_and_store(row.clone(), spec, last, cache, None, None), spec, last, cache
    )
    forgotten = dataclasses.replace(last, block_table=last.block_table.clone())
    forgotten.block_table[0, : (100 - 20 + 1) // 16] = 1 << 30
    result = ops.paged_attention(
        ops.rope_and_store(row.clone(), spec, forgotten, cache, None, None), spec, forgotten, cache
    )
    assert torch.equal(result, expected)


def test_many_pairs_are_split_into_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    from triolet_kernels.reference import paged_attention, reference_ops

    monkeypatch.setattr(reference_ops, "_SCORE_ELEMENTS", 1)
    monkeypatch.setattr(paged_attention, "_GATHER_ELEMENTS", 1)
    spec = AttentionSpec(num_heads=2, num_kv_heads=1, head_dim=16, scale=0.25)
    result, oracle = run(Case(spec, 16, [[150, 1], [70, 1]]))
    assert error(result, oracle) < 1e-5
