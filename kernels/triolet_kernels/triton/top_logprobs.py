"""Log-probabilities of chosen tokens and of the best ones; twin of reference/top_logprobs.py.

One program per row: the k-th best logit by `selection`, then a sort of the k that are kept.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from triolet_kernels.triton.functions import LOG2E
from triolet_kernels.triton.jit import Value, i32, jit
from triolet_kernels.triton.launch_table import next_power_of_2
from triolet_kernels.triton.sample import NUM_WARPS, TILE, best_of_row
from triolet_kernels.triton.selection import key_value, mass_of, order_key, select


@jit
def _top_logprobs(
    logits_ptr: Value,
    scratch_ptr: Value,
    tokens_ptr: Value,
    found_ptr: Value,
    logprob_ptr: Value,
    rank_ptr: Value,
    ids_ptr: Value,
    logprobs_ptr: Value,
    width: i32,
    k: i32,
    KP: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """One row; found int64 [R, KP] is scratch memory, KP a power of two >= k, or 0 without k."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * width
    lane = tl.arange(0, TILE)
    best, _, _ = best_of_row(logits_ptr, width, TILE)
    token = tl.load(tokens_ptr + row)
    value = tl.load(logits_ptr + token)
    mass = tl.full([], 0.0, tl.float64)
    rank = token * 0 + 1
    for begin in range(0, width, TILE):
        valid = begin + lane < width
        x = tl.load(logits_ptr + begin + lane, mask=valid, other=float("-inf"))
        mass += tl.sum(mass_of(x, best, LOG2E), 0).to(tl.float64)
        before = (x > value) | ((x == value) & (begin + lane < token))
        rank += tl.sum((before & valid).to(tl.int64), 0)
    normaliser = tl.log(mass.to(tl.float32))
    tl.store(logprob_ptr + row, value - best - normaliser)
    tl.store(rank_ptr + row, rank)

    if KP > 0:
        floor, above = select(
            logits_ptr, scratch_ptr + row * width, width, best, LOG2E, row * 0,
            k.to(tl.float32), False, TILE,
        )  # fmt: skip
        ties = k - above.to(tl.int32)
        found_ptr += row * KP
        seen = width * 0
        size = width * 0
        for begin in range(0, width, TILE):
            valid = begin + lane < width
            x = tl.load(logits_ptr + begin + lane, mask=valid, other=float("-inf"))
            key = order_key(x)
            is_tie = valid & (key == floor)
            tie_rank = seen + tl.cumsum(is_tie.to(tl.int32), 0)
            kept = valid & ((key > floor) | (is_tie & (tie_rank <= ties)))
            place = size + tl.cumsum(kept.to(tl.int32), 0) - 1
            # best first, then lower ids first, in one integer
            packed = (key - 2147483648) * 4294967296 + (4294967295 - (begin + lane).to(tl.int64))
            tl.store(found_ptr + place, packed, mask=kept)
            seen += tl.sum(is_tie.to(tl.int32), 0)
            size += tl.sum(kept.to(tl.int32), 0)
        tl.debug_barrier()  # other threads read what this one has written
        column = tl.arange(0, KP)
        packed = tl.load(found_ptr + column, mask=column < k, other=-9223372036854775808)
        packed = tl.sort(packed, descending=True)
        ids = 4294967295 - (packed & 4294967295)
        logprobs = key_value((packed >> 32) + 2147483648) - best - normaliser
        tl.store(ids_ptr + row * k + column, ids, mask=column < k)
        tl.store(logprobs_ptr + row * k + column, logprobs, mask=column < k)


def top_logprobs(
    logits: Tensor, tokens: Tensor, k: int, *, tile: int = TILE
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log_softmax of float32 logits [R, V] at `tokens` and at the k best.

    See `Ops.top_logprobs`. Every row must have a finite best logit.

    Raises:
        ValueError: k is negative or larger than the vocabulary, or the logits are not
            contiguous float32.
    """
    num_rows, width = logits.shape
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        raise ValueError(f"top_logprobs: logits must be contiguous float32, not {logits.dtype}")
    if not 0 <= k <= width:
        raise ValueError(f"k must be between 0 and the vocabulary size {width}, not {k}")
    padded = max(16, next_power_of_2(k)) if k else 0

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    logprob, rank = empty(num_rows, dtype=torch.float32), empty(num_rows, dtype=torch.int64)
    ids = empty(num_rows, k, dtype=torch.int64)
    logprobs = empty(num_rows, k, dtype=torch.float32)
    if num_rows:
        _top_logprobs[(num_rows,)](
            logits,
            torch.empty_like(logits) if k else logits,
            tokens,
            empty(num_rows, max(1, padded), dtype=torch.int64),
            logprob,
            rank,
            ids if k else rank,
            logprobs if k else logprob,
            width,
            k,
            KP=padded,
            TILE=tile,
            num_warps=NUM_WARPS,
        )
    return logprob, rank, ids, logprobs
