"""Build packed batches over a paged cache, for tests of kernels and models."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from triolet_kernels.ops import AttentionBatch


class BlockTables:
    """Hands out shuffled blocks to sequences, as many as their contexts need."""

    def __init__(self, num_blocks: int, block_size: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.block_size = block_size
        self.num_blocks = num_blocks
        self._free: list[int] = torch.randperm(num_blocks, generator=generator).tolist()
        self._tables: dict[int, list[int]] = {}

    def table(self, sequence: int, context_len: int) -> list[int]:
        """Block ids of a sequence; grows to hold `context_len` tokens."""
        table = self._tables.setdefault(sequence, [])
        while len(table) * self.block_size < context_len:
            table.append(self._free.pop())
        return table

    def batch(self, rows: Sequence[tuple[int, int, int]]) -> AttentionBatch:
        """A batch of (sequence, tokens already in the cache, tokens of this step)."""
        positions: list[int] = []
        slots: list[int] = []
        query_starts = [0]
        tables: list[list[int]] = []
        for sequence, start, count in rows:
            table = self.table(sequence, start + count)
            for position in range(start, start + count):
                block, offset = divmod(position, self.block_size)
                positions.append(position)
                slots.append(table[block] * self.block_size + offset)
            query_starts.append(query_starts[-1] + count)
            tables.append(table)
        context_lens = [start + count for _, start, count in rows]
        width = max(map(len, tables)) + 1
        # entries after the context may hold anything: an id far outside the cache
        padded = [table + [1 << 30] * (width - len(table)) for table in tables]
        return AttentionBatch(
            positions=torch.tensor(positions),
            slots=torch.tensor(slots),
            query_starts=torch.tensor(query_starts, dtype=torch.int32),
            context_lens=torch.tensor(context_lens, dtype=torch.int32),
            block_table=torch.tensor(padded, dtype=torch.int32),
            max_query_len=max(count for _, _, count in rows),
            max_context_len=max(context_lens),
        )


def chunks(length: int, size: int) -> list[tuple[int, int]]:
    """(start, count) of the chunks of a prompt."""
    return [(start, min(size, length - start)) for start in range(0, length, size)]


def naive_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of one whole sequence in float64: q [T, HQ, D], k and v [T, HKV, D]."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    position = torch.arange(q.shape[0])
    distance = position[:, None] - position[None, :]
    hidden = distance < 0
    if window is not None:
        hidden |= distance >= window
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        column = sinks.double()[:, None, None].expand(-1, q.shape[0], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(dim=-1)[..., : q.shape[0]]
    return torch.einsum("hqk,khd->qhd", weights, v)
