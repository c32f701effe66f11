"""One token per row, exactly; twin of reference/sample.py.

One program per row. Thresholds come from `selection`; the token from the inverse of the
cumulative mass in the order of ids, at the row's own uniform number. Masses are float32, sums
over tiles float64 in a fixed order: a row's token does not depend on other rows.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from triolet_kernels.ops import SamplingBatch
from triolet_kernels.triton.functions import LOG2E
from triolet_kernels.triton.jit import Value, i32, jit
from triolet_kernels.triton.selection import key_value, mass_of, order_key, select

TILE = 2048
NUM_WARPS = 16


@jit
def best_of_row(logits_ptr: Value, width: Value, TILE: tl.constexpr) -> Value:
    """Largest logit, its first id, and whether all are numbers and it is finite."""
    lane = tl.arange(0, TILE)
    best = tl.full([], float("-inf"), tl.float32)
    token = width * 0
    num_nan = width * 0
    for begin in range(0, width, TILE):
        x = tl.load(logits_ptr + begin + lane, mask=begin + lane < width, other=float("-inf"))
        is_nan = x != x
        num_nan += tl.sum(is_nan.to(tl.int32), 0)
        x = tl.where(is_nan, float("-inf"), x)
        highest = tl.max(x, 0)
        first = tl.min(tl.where(x == highest, begin + lane, 2147483647), 0)
        token = tl.where(highest > best, first, token)
        best = tl.maximum(best, highest)
    sound = (num_nan == 0) & (best > float("-inf")) & (best < float("inf"))
    return best, token, sound


@jit
def _kept_mass(
    logits_ptr: Value,
    begin: Value,
    width: Value,
    best: Value,
    sharpness: Value,
    floor: Value,
    ties: Value,
    ties_seen: Value,
    min_p: Value,
    TILE: tl.constexpr,
) -> Value:
    """float32 [TILE], mass of each token that is kept, else 0; and the ties seen so far."""
    lane = begin + tl.arange(0, TILE)
    valid = lane < width
    x = tl.load(logits_ptr + lane, mask=valid, other=float("-inf"))
    key = order_key(x)
    is_tie = valid & (key == floor)
    rank = ties_seen + tl.cumsum(is_tie.to(tl.int32), 0)
    mass = mass_of(x, best, sharpness)
    kept = valid & ((key > floor) | (is_tie & (rank <= ties))) & (mass >= min_p)
    return tl.where(kept, mass, 0.0), ties_seen + tl.sum(is_tie.to(tl.int32), 0)


@jit
def _total_mass(
    logits_ptr: Value,
    width: Value,
    best: Value,
    sharpness: Value,
    floor: Value,
    ties: Value,
    min_p: Value,
    TILE: tl.constexpr,
) -> Value:
    """float64, mass of everything that is kept."""
    total = tl.full([], 0.0, tl.float64)
    seen = width * 0
    for begin in range(0, width, TILE):
        mass, seen = _kept_mass(
            logits_ptr, begin, width, best, sharpness, floor, ties, seen, min_p, TILE
        )
        total += tl.sum(mass, 0).to(tl.float64)
    return total


@jit
def _inverse_cdf(
    logits_ptr: Value,
    width: Value,
    best: Value,
    sharpness: Value,
    floor: Value,
    ties: Value,
    min_p: Value,
    target: Value,
    TILE: tl.constexpr,
) -> Value:
    """The first id at which the cumulative mass exceeds the target (float64)."""
    lane = tl.arange(0, TILE)
    before = tl.full([], 0.0, tl.float64)
    seen = width * 0
    token = width * 0 - 1
    last = width * 0
    for begin in range(0, width, TILE):
        mass, seen = _kept_mass(
            logits_ptr, begin, width, best, sharpness, floor, ties, seen, min_p, TILE
        )
        after = before + tl.sum(mass, 0).to(tl.float64)
        last = tl.maximum(last, tl.max(tl.where(mass > 0.0, begin + lane, 0), 0))
        if (token < 0) & (after > target):
            passed = before + tl.cumsum(mass, 0).to(tl.float64) > target
            first = tl.min(tl.where(passed & (mass > 0.0), begin + lane, 2147483647), 0)
            # a scan rounds otherwise than a sum: then the last token of the tile it is
            token = tl.where(first == 2147483647, last, first)
        before = after
    return tl.where(token < 0, last, token)


@jit
def _sample(
    logits_ptr: Value,
    scratch_ptr: Value,
    temperature_ptr: Value,
    top_k_ptr: Value,
    top_p_ptr: Value,
    min_p_ptr: Value,
    uniform_ptr: Value,
    out_ptr: Value,
    width: i32,
    TILE: tl.constexpr,
) -> None:
    """One row of float32 logits [R, V] -> int64 [R]; -1 where no best logit exists."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * width
    scratch_ptr += row * width
    best, token, sound = best_of_row(logits_ptr, width, TILE)
    temperature = tl.load(temperature_ptr + row)
    if sound & (temperature > 0.0):
        # 1e-30: below that nothing but the best token has any mass, and 1 / T must be finite
        sharpness = LOG2E / tl.maximum(temperature, 1e-30)
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        min_p = tl.load(min_p_ptr + row)
        floor = row * 0
        ties = width
        if (top_k > 0) & (top_k < width):
            floor, above = select(
                logits_ptr, scratch_ptr, width, best, sharpness, floor, top_k.to(tl.float32),
                False, TILE,
            )  # fmt: skip
            ties = top_k - above.to(tl.int32)
        if top_p < 1.0:
            total = _total_mass(logits_ptr, width, best, sharpness, floor, ties, 0.0, TILE)
            target = (total * top_p).to(tl.float32)
            lower, above = select(
                logits_ptr, scratch_ptr, width, best, sharpness, floor, target, True, TILE
            )
            # of the tokens at the threshold as many as the mass still needs
            missing = (target - above) / mass_of(key_value(lower), best, sharpness)
            needed = tl.maximum(tl.minimum(tl.ceil(missing), width.to(tl.float32)), 1.0)
            needed = needed.to(tl.int32)
            ties = tl.where(lower == floor, tl.minimum(ties, needed), needed)
            floor = lower
        total = _total_mass(logits_ptr, width, best, sharpness, floor, ties, min_p, TILE)
        target = total * tl.load(uniform_ptr + row)
        token = _inverse_cdf(logits_ptr, width, best, sharpness, floor, ties, min_p, target, TILE)
    tl.store(out_ptr + row, tl.where(sound, token, -1).to(tl.int64))


def sample(logits: Tensor, batch: SamplingBatch, *, tile: int = TILE) -> Tensor:
    """Draw one token per row of float32 logits [R, V]; see `Ops.sample`.

    Args:
        logits: Contiguous.
        batch: Parameters of the rows.
        tile: Logits at a time; smaller in tests.

    Returns:
        int64 [R]; -1 for a row with NaN, or whose best logit is infinite.

    Raises:
        ValueError: The logits are not contiguous float32.
    """
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        raise ValueError(f"sample: logits must be contiguous float32, not {logits.dtype}")
    num_rows, width = logits.shape
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        _sample[(num_rows,)](
            logits,
            torch.empty_like(logits),
            batch.temperature,
            batch.top_k,
            batch.top_p,
            batch.min_p,
            batch.uniform,
            out,
            width,
            TILE=tile,
            num_warps=NUM_WARPS,
        )
    return out
