"""What the tests of the native kernels share: the instruction sets of this CPU, packed batches."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from triolet_kernels import native
from triolet_kernels.ops import AttentionBatch, AttentionSpec
from triolet_kernels.reference.reference_ops import ReferenceOps

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16)
# Relative Frobenius error against float64 or float32 arithmetic on the same inputs: sums are
# float32, results are rounded once.
TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 5e-3}


def isas() -> list[str]:
    """Instruction sets to test here; skips the module where the extension is not built."""
    reason = native.unavailable(CPU, torch.bfloat16)
    if reason is not None and "not built" in reason:
        pytest.skip(reason, allow_module_level=True)
    return native.supported_isas()


@functools.cache
def native_ops(
    dtype: torch.dtype,
    isa: str,
    threads: int = 1,
    quantization: native.Quantization | None = None,
) -> native.NativeOps:
    """One pool per combination, kept for the session."""
    return native.NativeOps(dtype, threads=threads, isa=isa, quantization=quantization)


@functools.cache
def reference_ops() -> ReferenceOps:
    """float32: the oracle of both dtypes, given inputs that are representable in both."""
    return ReferenceOps(CPU, torch.float32)


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Frobenius norm of the difference over that of the expected value."""
    difference = result.to(torch.float64) - expected.to(torch.float64)
    assert torch.isfinite(difference).all(), "not finite"
    scale = expected.to(torch.float64).norm().clamp_min(1e-30)
    return float(difference.norm() / scale)


class PagedSequences:
    """Random sequences on a random block table; hands out batches of any part of them.

    Attributes:
        block_table: int32 [S, max blocks]; unused entries are an id that does not exist.
        num_blocks: Blocks to allocate; some belong to nobody.
    """

    def __init__(
        self,
        lengths: list[int],
        block_size: int,
        spec: AttentionSpec,
        seed: int,
        dtype: torch.dtype,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.lengths = lengths
        self.block_size = block_size
        counts = [-(-length // block_size) for length in lengths]
        self.num_blocks = sum(counts) + 2
        order = torch.randperm(self.num_blocks, generator=generator).tolist()
        self.block_table = torch.full((len(lengths), max(counts)), 2**30, dtype=torch.int32)
        for row, count in enumerate(counts):
            self.block_table[row, :count] = torch.tensor([order.pop() for _ in range(count)])
        width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        self.qkv = [torch.randn(length, width, generator=generator).to(dtype) for length in lengths]

    def batch(self, parts: list[tuple[int, int, int]]) -> tuple[Tensor, AttentionBatch]:
        """qkv rows and batch of the parts (sequence, first token, end)."""
        positions = torch.cat([torch.arange(begin, end) for _, begin, end in parts])
        slots = torch.cat(
            [
                self.block_table[s, torch.arange(begin, end) // self.block_size].to(torch.int64)
                * self.block_size
                + torch.arange(begin, end) % self.block_size
                for s, begin, end in parts
            ]
        )
        lengths = [end - begin for _, begin, end in parts]
        ends = [end for _, _, end in parts]
        starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        table = self.block_table[[s for s, _, _ in parts]].contiguous()
        qkv = torch.cat([self.qkv[s][begin:end] for s, begin, end in parts]).contiguous()
        contexts = torch.tensor(ends, dtype=torch.int32)
        return qkv, AttentionBatch(
            positions, slots, starts, contexts, table, max(lengths), max(ends)
        )
