"""Penalties on the tokens that rows have seen; twin of reference/penalties.py.

One program per row walks over its tokens. The one that a step in flight samples is counted where
it is found among them, and added at the end where it is not: nobody waits to know it.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from triolet_kernels.ops import PenaltyBatch
from triolet_kernels.triton.jit import Value, i32, jit

_TILE = 512


@jit
def _penalized(
    value: Value, count: Value, repetition: Value, frequency: Value, presence: Value
) -> Value:
    """Logits of tokens with these counts."""
    value = tl.where(value > 0.0, value / repetition, value * repetition)
    return value - frequency * count - tl.where(count > 0.0, presence, 0.0)


@jit
def _penalize(
    logits_ptr: Value,
    rows_ptr: Value,
    starts_ptr: Value,
    ids_ptr: Value,
    counts_ptr: Value,
    pending_ptr: Value,
    repetition_ptr: Value,
    frequency_ptr: Value,
    presence_ptr: Value,
    width: i32,
    TILE: tl.constexpr,
) -> None:
    """One row of `PenaltyBatch`; logits float32 [R, V]."""
    entry = tl.program_id(0)
    logits_ptr += tl.load(rows_ptr + entry) * width
    pending = tl.load(pending_ptr + entry)
    repetition = tl.load(repetition_ptr + entry)
    frequency = tl.load(frequency_ptr + entry)
    presence = tl.load(presence_ptr + entry)
    start = tl.load(starts_ptr + entry)
    stop = tl.load(starts_ptr + entry + 1)
    found = start * 0
    for begin in range(start, stop, TILE):
        place = begin + tl.arange(0, TILE)
        valid = place < stop
        token = tl.load(ids_ptr + place, mask=valid, other=-2)
        is_pending = token == pending
        count = tl.load(counts_ptr + place, mask=valid, other=0.0) + is_pending.to(tl.float32)
        value = tl.load(logits_ptr + token, mask=valid, other=0.0)
        value = _penalized(value, count, repetition, frequency, presence)
        tl.store(logits_ptr + token, value, mask=valid)
        found += tl.sum(is_pending.to(tl.int32), 0)
    if (pending >= 0) & (found == 0):
        value = tl.load(logits_ptr + pending)
        value = _penalized(value, found.to(tl.float32) + 1.0, repetition, frequency, presence)
        tl.store(logits_ptr + pending, value)


def penalize(logits: Tensor, batch: PenaltyBatch) -> None:
    """Apply penalties to float32 logits [R, V], contiguous, in place; see `PenaltyBatch`.

    Raises:
        ValueError: The logits are not contiguous float32.
    """
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        raise ValueError(f"penalize: logits must be contiguous float32, not {logits.dtype}")
    num_rows = batch.rows.shape[0]
    if num_rows:
        _penalize[(num_rows,)](
            logits,
            batch.rows,
            batch.starts,
            batch.ids,
            batch.counts,
            batch.pending,
            batch.repetition,
            batch.frequency,
            batch.presence,
            logits.shape[1],
            TILE=_TILE,
            num_warps=4,
        )
