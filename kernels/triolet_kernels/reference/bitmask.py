"""Ban what a bit mask does not allow."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def ban(logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
    """Set what is not allowed to -inf, in place; see `Ops.ban`."""
    width = logits.shape[1]
    shifts = torch.arange(8, dtype=torch.uint8, device=logits.device)
    for row, mask in zip(rows.tolist(), allowed, strict=True):
        bits = (mask[:, None] >> shifts) & 1  # [bytes, 8]
        known = bits.view(-1)[:width] != 0
        logits[row, : len(known)].masked_fill_(~known, -math.inf)
        logits[row, len(known) :] = -math.inf
