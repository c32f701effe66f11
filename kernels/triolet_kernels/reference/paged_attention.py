"""Causal attention over a paged cache: scores, softmax and sums per pair of tiles.

Two passes over the pairs of `AttentionPlan`: scores and their maximum per row, then
exp(score - maximum) times the values. No running maximum is needed, so nothing is rescaled,
and a tile that a row does not attend to adds exact zeros.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from triolet_kernels.elementwise import map_in_place
from triolet_kernels.ops import AttentionSpec
from triolet_kernels.reference.attention_plan import KV_TILE, AttentionPlan
from triolet_kernels.reference.kv_cache import SlotCache

# Pairs per product in batch-invariant mode: every product then has the same shape. More waste
# less time in Python, fewer waste less padding when one sequence decodes alone.
PAIRS_PER_CALL = 8

# float32 elements of keys that one product may gather (16 MiB): it should stay in the cache.
_GATHER_ELEMENTS = 1 << 22


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """The pairs `start` to `stop`, computed by one product of `size` pairs (padded)."""

    start: int
    stop: int
    size: int


def paged_attention(
    q: Tensor,
    spec: AttentionSpec,
    plan: AttentionPlan,
    cache: SlotCache,
    sinks: Tensor | None,
    out: Tensor,
    *,
    batch_invariant: bool,
) -> None:
    """Attention of the rows of one plan; all sums are in float32.

    Args:
        q: [T, HQ, D].
        spec: The layer.
        plan: Some of the rows of the batch.
        cache: Of this layer.
        sinks: [HQ] or None; see `Ops.paged_attention`.
        out: [T, HQ, D]; the rows of the plan are written.
        batch_invariant: Make every product with the same shape.
    """
    num_tiles, tile_size = plan.tile_rows.shape
    group = spec.num_heads // spec.num_kv_heads
    tiles = (
        (q.to(torch.float32) * spec.scale)[plan.tile_rows]
        .view(num_tiles, tile_size, spec.num_kv_heads, group, spec.head_dim)
        .permute(2, 0, 1, 3, 4)
        .reshape(spec.num_kv_heads, num_tiles, tile_size * group, spec.head_dim)
    )  # [HKV, Q, M * G, D]: the G query heads of a KV head are rows of one product
    calls = list(_calls(plan, spec, batch_invariant=batch_invariant))
    scores = _scores(tiles, spec, plan, cache, calls)
    if spec.softcap is not None:
        _apply(torch.Tensor.tanh_, scores.div_(spec.softcap), batch_invariant)
        scores.mul_(spec.softcap)
    masked = scores.view(spec.num_kv_heads, -1, tile_size, group, KV_TILE)
    masked.masked_fill_(plan.pair_mask[None, :, :, None, :], -torch.inf)

    row_sinks = None
    if sinks is not None:
        row_sinks = sinks.to(torch.float32).view(spec.num_kv_heads, 1, 1, group)
        row_sinks = row_sinks.expand(-1, num_tiles, tile_size, group).reshape(tiles.shape[:3])
    maximum = _reduce_ranks(torch.maximum, scores.amax(dim=-1), plan, num_tiles)
    if row_sinks is not None:
        maximum = torch.maximum(maximum, row_sinks)
    scores.sub_(maximum.index_select(1, plan.pair_query)[..., None])
    _apply(torch.Tensor.exp_, scores, batch_invariant)
    total = _reduce_ranks(torch.add, scores.sum(dim=-1), plan, num_tiles)
    if row_sinks is not None:
        total = total + _apply(torch.Tensor.exp_, row_sinks.sub(maximum), batch_invariant)
    weighted = _weighted_values(scores, spec, plan, cache, calls)
    result = _reduce_ranks(torch.add, weighted, plan, num_tiles) / total[..., None]

    rows = result.view(spec.num_kv_heads, num_tiles, tile_size, group, spec.head_dim)
    rows = rows.permute(1, 2, 0, 3, 4).reshape(num_tiles, tile_size, spec.num_heads, spec.head_dim)
    out[plan.tile_rows[plan.row_valid]] = rows[plan.row_valid].to(out.dtype)


def _calls(plan: AttentionPlan, spec: AttentionSpec, *, batch_invariant: bool) -> Iterator[_Call]:
    num_pairs = plan.pair_query.shape[0]
    size = PAIRS_PER_CALL
    if not batch_invariant:
        per_pair = KV_TILE * spec.num_kv_heads * spec.head_dim
        size = min(num_pairs, max(1, _GATHER_ELEMENTS // per_pair))
    for start in range(0, num_pairs, size):
        stop = min(start + size, num_pairs)
        yield _Call(start, stop, size if batch_invariant else stop - start)


def _pair_indices(call: _Call, device: torch.device) -> Tensor:
    """Pairs of a call, int64 [size]; padding repeats the first pair of the call."""
    pairs = torch.arange(call.start, call.start + call.size, device=device)
    return torch.where(pairs < call.stop, pairs, call.start)


def _gather(memory: Tensor, slots: Tensor) -> Tensor:
    """memory [HKV, slots, D] at slots [size, KV_TILE] -> float32 [HKV * size, KV_TILE, D]."""
    gathered = memory.index_select(1, slots.reshape(-1)).to(torch.float32)
    return gathered.view(memory.shape[0] * slots.shape[0], KV_TILE, memory.shape[2])


def _scores(
    tiles: Tensor, spec: AttentionSpec, plan: AttentionPlan, cache: SlotCache, calls: list[_Call]
) -> Tensor:
    """Products of query tiles [HKV, Q, MG, D] with their keys: float32 [HKV, P, MG, KV_TILE]."""
    num_heads, _, rows, head_dim = tiles.shape
    out = tiles.new_empty((num_heads, plan.pair_query.shape[0], rows, KV_TILE))
    for call in calls:
        pairs = _pair_indices(call, tiles.device)
        keys = _gather(cache.keys, plan.pair_slots[pairs])
        queries = tiles.index_select(1, plan.pair_query[pairs]).view(-1, rows, head_dim)
        product = torch.bmm(queries, keys.transpose(1, 2)).view(num_heads, call.size, rows, KV_TILE)
        out[:, call.start : call.stop] = product[:, : call.stop - call.start]
    return out


def _weighted_values(
    weights: Tensor, spec: AttentionSpec, plan: AttentionPlan, cache: SlotCache, calls: list[_Call]
) -> Tensor:
    """Products of weights [HKV, P, MG, KV_TILE] with the values: float32 [HKV, P, MG, D]."""
    num_heads, num_pairs, rows, _ = weights.shape
    out = weights.new_empty((num_heads, num_pairs, rows, spec.head_dim))
    for call in calls:
        pairs = _pair_indices(call, weights.device)
        values = _gather(cache.values, plan.pair_slots[pairs])
        factors = weights.index_select(1, pairs).view(-1, rows, KV_TILE)
        product = torch.bmm(factors, values).view(num_heads, call.size, rows, spec.head_dim)
        out[:, call.start : call.stop] = product[:, : call.stop - call.start]
    return out


def _reduce_ranks(
    combine: Callable[[Tensor, Tensor], Tensor], pairs: Tensor, plan: AttentionPlan, num_tiles: int
) -> Tensor:
    """Combine the pairs [HKV, P, ...] of each query tile, in order -> [HKV, Q, ...]."""
    result = pairs[:, :num_tiles].clone()  # rank 0: every query tile has one
    start = num_tiles
    for count in plan.rank_counts[1:]:
        result[:, :count] = combine(result[:, :count], pairs[:, start : start + count])
        start += count
    return result


def _apply(function: Callable[[Tensor], Tensor], x: Tensor, batch_invariant: bool) -> Tensor:
    return map_in_place(function, x) if batch_invariant else function(x)
