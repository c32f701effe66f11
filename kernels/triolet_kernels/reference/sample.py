"""Exact sampling of one token per row: a threshold per filter, then the inverse CDF.

Rows are taken one by one, in float64: a row's token is then a function of its logits, its
parameters and its uniform alone. No row sorts its vocabulary unless its nucleus is most of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from triolet_kernels.ops import SamplingBatch

# Candidates a nucleus is first looked for in; most nuclei are smaller. Grown eightfold.
_FIRST_CANDIDATES = 256


def sample(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """Draw one token per row of float32 logits [R, V]; see `Ops.sample`.

    Returns:
        int64 [R].

    Raises:
        ValueError: A row that samples has no finite logit, so there is nothing to draw.
    """
    if batch.all_greedy:
        return logits.argmax(dim=-1)  # of equal ones the first
    temperatures = batch.temperature.tolist()
    top_ks = batch.top_k.tolist()
    top_ps = batch.top_p.tolist()
    min_ps = batch.min_p.tolist()
    uniforms = batch.uniform.tolist()
    tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    for row, temperature in enumerate(temperatures):
        if temperature == 0.0:
            tokens[row] = logits[row].argmax()
            continue
        mass = _unnormalised(logits[row], temperature, row)
        mass = _filter(mass, top_ks[row], top_ps[row], min_ps[row])
        cumulative = mass.cumsum(dim=0)
        # uniform < 1, so the target is below the last entry, and `right` finds the first entry
        # above the target: a token that added something. Mass 0 is never drawn.
        target = cumulative[-1:] * uniforms[row]
        tokens[row] = torch.searchsorted(cumulative, target, right=True)[0]
    return tokens


def _unnormalised(logits: Tensor, temperature: float, row: int) -> Tensor:
    """exp((logits - max) / temperature) in float64; the best token has mass 1."""
    wide = logits.to(torch.float64)
    best = wide.max()
    if not bool(torch.isfinite(best)):
        raise ValueError(f"row {row} has no finite logit: every token is forbidden, or one is NaN")
    return wide.sub_(best).div_(temperature).exp_()


def _filter(mass: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Set the mass of tokens outside top_k, top_p and min_p to 0; mass is [V], overwritten."""
    if 0 < top_k < mass.shape[0]:
        mass = _keep_best(mass, top_k)
    if top_p < 1.0:
        mass = _keep_best(mass, _nucleus_size(mass, top_p))
    if min_p > 0.0:
        mass.masked_fill_(mass < min_p, 0.0)  # the best token has mass 1
    return mass


def _keep_best(mass: Tensor, count: int) -> Tensor:
    """Keep the `count` largest entries; of equal ones at the border those with lower ids."""
    border = torch.topk(mass, count).values[-1]
    above = mass > border
    num_ties = count - int(above.sum())
    ties = mass == border
    kept = above | (ties & (ties.cumsum(dim=0) <= num_ties))
    return mass.masked_fill_(~kept, 0.0)


def _nucleus_size(mass: Tensor, top_p: float) -> int:
    """The fewest tokens, largest first, that hold `top_p` of the mass; at least one."""
    needed = top_p * float(mass.sum())
    count = min(_FIRST_CANDIDATES, mass.shape[0])
    while True:
        held = torch.topk(mass, count).values.cumsum(dim=0)
        enough = int(torch.searchsorted(held, needed)) + 1
        if enough <= count or count == mass.shape[0]:
            return min(enough, count)
        count = min(8 * count, mass.shape[0])
