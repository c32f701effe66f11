"""Run a `CausalLM` over packed, chunked, paged batches, as a runner would."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from support.paged import BlockTables
from triolet.models.causal_lm import CausalLM
from triolet_kernels import Kernels, native_unavailable, select_ops
from triolet_kernels.ops import Ops

CPU = torch.device("cpu")
KERNELS: tuple[Kernels, ...] = ("reference", "native")

Step = Sequence[tuple[int, int]]
"""One batch: (sequence, tokens to compute)."""


def make_ops(kernels: Kernels, dtype: torch.dtype, *, batch_invariant: bool = False) -> Ops:
    """The kernels of that name on as many threads as torch has; skips the test without them."""
    if kernels == "native" and (reason := native_unavailable(CPU, dtype)) is not None:
        pytest.skip(reason)
    return select_ops(
        CPU,
        dtype,
        kernels=kernels,
        batch_invariant=batch_invariant,
        threads=torch.get_num_threads(),
    )


def run_packed(
    model: CausalLM,
    ops: Ops,
    sequences: Sequence[Tensor],
    steps: Sequence[Step],
    block_size: int = 16,
) -> list[Tensor]:
    """Logits [length, V] of every sequence, computed batch by batch.

    Args:
        model: The model.
        ops: What allocates the cache.
        sequences: int64 token ids.
        steps: Together they compute every token of every sequence once, in order.
        block_size: Tokens per KV block.
    """
    num_blocks = sum(-(-len(s) // block_size) for s in sequences) + 2
    tables = BlockTables(num_blocks, block_size)
    caches = [ops.allocate_kv(num_blocks, block_size, spec) for spec in model.attention]
    done = [0] * len(sequences)
    logits: list[list[Tensor]] = [[] for _ in sequences]
    for step in steps:
        rows = [(sequence, done[sequence], count) for sequence, count in step]
        batch = tables.batch(rows)
        ids = torch.cat([sequences[s][start : start + count] for s, start, count in rows])
        hidden = model.forward(ids, [(batch, cache) for cache in caches])
        result = model.logits(hidden)
        first = 0
        for sequence, _, count in rows:
            logits[sequence].append(result[first : first + count])
            first += count
            done[sequence] += count
    assert done == [len(s) for s in sequences]
    return [torch.cat(parts) for parts in logits]


def prefill_at_once(lengths: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Every sequence whole, all in one batch."""
    return [list(enumerate(lengths))]


def prefill_in_chunks(lengths: Sequence[int], size: int) -> list[list[tuple[int, int]]]:
    """Chunks of at most `size`, all sequences side by side."""
    rest = list(lengths)
    steps: list[list[tuple[int, int]]] = []
    while any(rest):
        step = [(i, min(size, n)) for i, n in enumerate(rest) if n]
        for i, count in step:
            rest[i] -= count
        steps.append(step)
    return steps


def prefill_then_decode(lengths: Sequence[int], decodes: int) -> list[list[tuple[int, int]]]:
    """Sequence i joins at step i, whole but for its last tokens, which come one by one."""
    started: list[int] = []
    left = dict.fromkeys(range(len(lengths)), decodes)
    steps: list[list[tuple[int, int]]] = []
    while len(started) < len(lengths) or any(left.values()):
        step = [(i, 1) for i in started if left[i]]
        for i, _ in step:
            left[i] -= 1
        if len(started) < len(lengths):
            joining = len(started)
            started.append(joining)
            step.append((joining, lengths[joining] - decodes))
        steps.append(step)
    return steps
