"""Ban what a bit mask does not allow; twin of reference/bitmask.py."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from triolet_kernels.triton.jit import Value, i32, jit
from triolet_kernels.triton.launch_table import cdiv

_BLOCK = 2048


@jit
def _ban(
    logits_ptr: Value,
    rows_ptr: Value,
    allowed_ptr: Value,
    width: i32,
    num_bytes: i32,
    BLOCK: tl.constexpr,
) -> None:
    """2048 tokens of one row; logits float32 [R, V], allowed uint8 [G, num_bytes]."""
    entry = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    byte = token >> 3
    mask = tl.load(allowed_ptr + entry * num_bytes + byte, mask=byte < num_bytes, other=0)
    is_banned = ((mask.to(tl.int32) >> (token & 7)) & 1) == 0
    target = logits_ptr + tl.load(rows_ptr + entry) * width + token
    banned = tl.full([BLOCK], float("-inf"), tl.float32)
    tl.store(target, banned, mask=is_banned & (token < width))


def ban(logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
    """Set what is not allowed to -inf, in place; see `Ops.ban`.

    Raises:
        ValueError: Shapes or dtypes do not fit.
    """
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        raise ValueError(f"ban: logits must be contiguous float32, not {logits.dtype}")
    if allowed.dtype != torch.uint8 or allowed.shape[0] != rows.shape[0]:
        raise ValueError(f"ban: allowed must be uint8 [{rows.shape[0]}, bytes]")
    if len(rows):
        width = logits.shape[1]
        _ban[(rows.shape[0], cdiv(width, _BLOCK))](
            logits,
            rows,
            allowed.contiguous(),
            width,
            allowed.shape[1],
            BLOCK=_BLOCK,
            num_warps=4,
        )
