"""How a packed batch is cut into products of equal shape, for `paged_attention`.

Rows of one sequence are cut into query tiles of a few consecutive rows, the cache of a
sequence into KV tiles of 64 tokens at fixed positions. A *pair* is a query tile and a KV tile
that it attends to; every pair is one small product per KV head:

                      KV tile 0   KV tile 1   KV tile 2
    query tile 0         pair
    query tile 1         pair        pair
    query tile 2 (a decode) pair     pair        pair

Query tiles are ordered by falling number of KV tiles, and pairs by their rank (first, second,
... KV tile of its query tile): the pairs of rank r are then one slice, and they belong to the
first query tiles. Sums over KV tiles are taken rank by rank, so their order depends on the
sequence alone.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from triolet_kernels.ops import AttentionBatch

KV_TILE = 64
"""Tokens of context per pair. Their positions are fixed, so that chunks of a prefill, decode
and other kernels can sum in the same order."""


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The pairs of one batch. Q query tiles of M rows each, P pairs.

    Attributes:
        tile_rows: int64 [Q, M], row of the batch; a tile that is not full repeats its first.
        row_valid: bool [Q, M], whether the entry of `tile_rows` is a row and no repetition.
        rank_counts: Pairs of rank 0, 1, ...; falling.
        pair_query: int64 [P], query tile of each pair.
        pair_slots: int64 [P, KV_TILE], cache slots; positions that no row of the query tile
            attends to are replaced by one that is, so that unused memory is never read.
        pair_mask: bool [P, M, KV_TILE], True where the row does not attend to the token.
    """

    tile_rows: Tensor
    row_valid: Tensor
    rank_counts: tuple[int, ...]
    pair_query: Tensor
    pair_slots: Tensor
    pair_mask: Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class _QueryTiles:
    """Q query tiles; every field is int64 [Q].

    Attributes:
        sequence: Row of the block table.
        first_row: First row in the batch.
        num_rows: Rows in the tile.
        first_position: Position of the first row.
        last_position: Position of the last row.
        lowest: Lowest position that a row attends to.
        first_kv: First KV tile.
        num_kv: Number of KV tiles.
    """

    sequence: Tensor
    first_row: Tensor
    num_rows: Tensor
    first_position: Tensor
    last_position: Tensor
    lowest: Tensor
    first_kv: Tensor
    num_kv: Tensor

    def take(self, index: Tensor | slice) -> _QueryTiles:
        """Some of the tiles."""
        return _QueryTiles(
            *(getattr(self, field.name)[index] for field in dataclasses.fields(self))
        )


def plan_attention(
    batch: AttentionBatch, window: int | None, block_size: int, query_tile: int, pairs_max: int
) -> tuple[AttentionPlan, ...]:
    """Cut a batch into pairs.

    Args:
        batch: Rows of a sequence are consecutive, and so are their positions.
        window: Tokens attended to, the current one included; None is all.
        block_size: Tokens per KV block.
        query_tile: Rows per query tile (M).
        pairs_max: Pairs in one plan, unless a single query tile has more.

    Returns:
        One plan per group of query tiles; together they cover every row once.
    """
    tiles = _query_tiles(batch, window, query_tile)
    tiles = tiles.take(torch.argsort(tiles.num_kv, descending=True, stable=True))
    plans: list[AttentionPlan] = []
    start, pairs = 0, 0
    counts = tiles.num_kv.tolist()
    for stop, count in enumerate(counts):
        if stop > start and pairs + count > pairs_max:
            group = tiles.take(slice(start, stop))
            plans.append(_plan(group, batch, window, block_size, query_tile))
            start, pairs = stop, 0
        pairs += count
    group = tiles.take(slice(start, len(counts)))
    plans.append(_plan(group, batch, window, block_size, query_tile))
    return tuple(plans)


def _query_tiles(batch: AttentionBatch, window: int | None, query_tile: int) -> _QueryTiles:
    device = batch.positions.device
    starts = batch.query_starts.to(torch.int64)
    lengths = starts[1:] - starts[:-1]  # [S]
    tiles_per_sequence = (lengths + query_tile - 1) // query_tile
    sequence = torch.repeat_interleave(
        torch.arange(lengths.shape[0], device=device), tiles_per_sequence
    )  # [Q]
    tiles_before = tiles_per_sequence.cumsum(0) - tiles_per_sequence
    index_in_sequence = torch.arange(sequence.shape[0], device=device) - tiles_before[sequence]
    first_row = starts[:-1][sequence] + index_in_sequence * query_tile
    num_rows = torch.clamp(starts[1:][sequence] - first_row, max=query_tile)
    first_position = batch.positions[first_row]
    last_position = first_position + num_rows - 1
    lowest = torch.zeros_like(first_position)
    if window is not None:
        lowest = torch.clamp(first_position - window + 1, min=0)
    first_kv = lowest // KV_TILE
    return _QueryTiles(
        sequence=sequence,
        first_row=first_row,
        num_rows=num_rows,
        first_position=first_position,
        last_position=last_position,
        lowest=lowest,
        first_kv=first_kv,
        num_kv=last_position // KV_TILE - first_kv + 1,
    )


def _plan(
    tiles: _QueryTiles,
    batch: AttentionBatch,
    window: int | None,
    block_size: int,
    query_tile: int,
) -> AttentionPlan:
    """The pairs of some query tiles, which are ordered by falling number of KV tiles."""
    device = batch.positions.device
    ranks = torch.arange(int(tiles.num_kv[0]), device=device)
    in_use = tiles.num_kv[None, :] > ranks[:, None]  # [ranks, Q]
    pair_rank, pair_query = in_use.nonzero(as_tuple=True)  # ordered by rank, then query tile

    row_index = torch.arange(query_tile, device=device)
    row_valid = row_index < tiles.num_rows[:, None]
    row_offset = torch.where(row_valid, row_index, 0)
    query_positions = tiles.first_position[:, None] + row_offset  # [Q, M]

    kv_start = (tiles.first_kv[pair_query] + pair_rank) * KV_TILE
    kv_positions = kv_start[:, None] + torch.arange(KV_TILE, device=device)  # [P, KV_TILE]
    distance = query_positions[pair_query][:, :, None] - kv_positions[:, None, :]
    pair_mask = distance < 0
    if window is not None:
        pair_mask |= distance >= window
    readable = torch.minimum(
        torch.maximum(kv_positions, tiles.lowest[pair_query, None]),
        tiles.last_position[pair_query, None],
    )
    blocks = batch.block_table[tiles.sequence[pair_query, None], readable // block_size]
    return AttentionPlan(
        tile_rows=tiles.first_row[:, None] + row_offset,
        row_valid=row_valid,
        rank_counts=tuple(in_use.sum(dim=1).tolist()),
        pair_query=pair_query,
        pair_slots=blocks.to(torch.int64) * block_size + readable % block_size,
        pair_mask=pair_mask,
    )
