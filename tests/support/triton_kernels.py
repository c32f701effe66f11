"""The Triton kernels in the interpreter, and what they are compared with."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from triolet_kernels.cuda import TritonOps
from triolet_kernels.ops import AttentionBatch, AttentionSpec
from triolet_kernels.reference.kv_cache import SlotCache
from triolet_kernels.reference.reference_ops import ReferenceOps
from triolet_kernels.triton.kv_cache import BlockCache

pytest.importorskip("triton")

CPU = torch.device("cpu")
interpreted = [
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1",
        reason="test_triton.py runs this file in a process of its own with TRITON_INTERPRET=1",
    ),
    # numpy's, for what is meant: e^x is infinite in the tails of a gate, and 0 / 0 in rows that
    # are masked when they are stored.
    pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning"),
]
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
"""Largest error relative to the largest value. The interpreter cuts float32 to bfloat16 instead
of rounding it: up to 0.8 % for each time a value is stored."""


def triton_ops(dtype: torch.dtype = torch.float32, *, batch_invariant: bool = False) -> TritonOps:
    """The kernels as they run on an H200, multiplying in float32."""
    return TritonOps(CPU, dtype, (9, 0), batch_invariant=batch_invariant, upcast=True)


def reference_ops(dtype: torch.dtype = torch.float32) -> ReferenceOps:
    """The oracle."""
    return ReferenceOps(CPU, dtype)


def assert_close(result: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Compare with the dtype's tolerance; NaN anywhere fails."""
    assert result.shape == expected.shape
    error = (result.double() - expected.double()).abs().max()
    limit = TOLERANCE[dtype] * max(1.0, float(expected.double().abs().max()))
    assert float(error) <= limit, (float(error), limit)


def filled_caches(
    spec: AttentionSpec,
    batch: AttentionBatch,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    seed: int,
) -> tuple[BlockCache, SlotCache]:
    """The same random keys and values in both layouts; NaN wherever no row attends to."""
    generator = torch.Generator().manual_seed(seed)
    shape = (spec.num_kv_heads, num_blocks * block_size, spec.head_dim)
    keys, values = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    read = torch.zeros(num_blocks * block_size, dtype=torch.bool)
    starts = batch.query_starts.tolist()
    for sequence, length in enumerate(batch.context_lens.tolist()):
        earliest = int(batch.positions[starts[sequence]])
        first = 0 if spec.window is None else max(0, earliest - spec.window + 1)
        for position in range(first, length):
            block = int(batch.block_table[sequence, position // block_size])
            read[block * block_size + position % block_size] = True
    keys[:, ~read] = torch.nan
    values[:, ~read] = torch.nan

    def by_block(x: Tensor) -> Tensor:
        split = x.view(spec.num_kv_heads, num_blocks, block_size, spec.head_dim)
        return split.permute(1, 0, 2, 3).contiguous()

    blocks = BlockCache(by_block(keys), by_block(values), block_size)
    return blocks, SlotCache(keys, values, block_size)
