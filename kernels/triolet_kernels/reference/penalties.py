"""Repetition, frequency and presence penalties on the tokens that rows have seen.

Repetition is CTRL's (Keskar et al., arXiv:1909.05858), frequency and presence are OpenAI's, in the
order of vLLM.
"""

from __future__ import annotations

import torch
from torch import Tensor

from triolet_kernels.ops import PenaltyBatch


def penalize(logits: Tensor, batch: PenaltyBatch) -> None:
    """Apply penalties to float32 logits [R, V], contiguous, in place; see `PenaltyBatch`."""
    flat, width = logits.view(-1), logits.shape[1]
    num_rows = batch.rows.shape[0]
    lengths = (batch.starts[1:] - batch.starts[:-1]).to(torch.int64)
    of_row = torch.repeat_interleave(torch.arange(num_rows, device=logits.device), lengths)
    is_pending = batch.ids == batch.pending[of_row]
    index = batch.rows[of_row] * width + batch.ids
    flat[index] = _penalized(flat[index], batch, of_row, batch.counts + is_pending)

    counted = torch.zeros(num_rows, dtype=torch.int32, device=logits.device)
    counted.index_add_(0, of_row, is_pending.to(torch.int32))
    alone = torch.nonzero((batch.pending >= 0) & (counted == 0))[:, 0]
    index = batch.rows[alone] * width + batch.pending[alone]
    once = torch.ones_like(batch.repetition[alone])
    flat[index] = _penalized(flat[index], batch, alone, once)


def _penalized(values: Tensor, batch: PenaltyBatch, of_row: Tensor, counts: Tensor) -> Tensor:
    repetition = batch.repetition[of_row]
    values = torch.where(values > 0, values / repetition, values * repetition)
    seen = batch.presence[of_row] * (counts > 0)
    return values - batch.frequency[of_row] * counts - seen
