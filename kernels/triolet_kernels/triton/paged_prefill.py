"""Attention of chunks of prompts, and of everything where batch invariance is asked for.

One program per KV head and query tile: a few consecutive tokens of one sequence times the query
heads that share the KV head. Nobody lists the tiles: sequence i owns the tiles from
query_starts[i] // TOKENS + i on, which is at least as many as it needs, and a program finds its
sequence by bisection (the last one of a sequence may find nothing to do). So a launch needs no
lengths from the host.

KV tiles lie at fixed positions and are summed in order, and a tile that a row does not attend
to adds exact zeros: a row has the same bits in any batch and any cut of its prompt.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from triolet_kernels.ops import AttentionBatch, AttentionSpec
from triolet_kernels.triton.functions import LOG2E, dot, soft_cap
from triolet_kernels.triton.jit import Value, fp32, i32, jit
from triolet_kernels.triton.kv_cache import BlockCache
from triolet_kernels.triton.launch_table import Launch, next_power_of_2


@jit
def _sequence_of_tile(
    starts_ptr: Value, tile: Value, num_sequences: Value, TOKENS: tl.constexpr
) -> Value:
    """The last sequence i with query_starts[i] // TOKENS + i <= tile."""
    low = tile * 0
    high = low + num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        before = tl.load(starts_ptr + middle) // TOKENS + middle <= tile
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low


@jit
def _prefill(
    q_ptr: Value,
    keys_ptr: Value,
    values_ptr: Value,
    table_ptr: Value,
    starts_ptr: Value,
    lens_ptr: Value,
    sinks_ptr: Value,
    out_ptr: Value,
    num_sequences: i32,
    table_stride: i32,
    scale: fp32,
    cap: fp32,
    HKV: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    BS: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    DECODES_TOO: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    """One query tile of one KV head; q and out [T, HQ, D], caches [NB, HKV, BS, D]."""
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = _sequence_of_tile(starts_ptr, tile, num_sequences, TOKENS)
    start = tl.load(starts_ptr + sequence)
    num_queries = tl.load(starts_ptr + sequence + 1) - start
    query = (tile - (start // TOKENS + sequence)) * TOKENS
    wanted = query < num_queries
    if not DECODES_TOO:
        wanted = wanted & (num_queries > 1)
    if wanted:
        context = tl.load(lens_ptr + sequence)
        cached = context - num_queries
        r = tl.arange(0, ROWS)
        d = tl.arange(0, DP)
        t = tl.arange(0, TILE)
        token = query + r // G
        row_valid = (r < TOKENS * G) & (token < num_queries)
        in_head = (d < D)[None, :]
        head = kv_head * G + r % G
        q_offset = (start + token).to(tl.int64) * (HKV * G) + head
        q_offset = q_offset[:, None] * D + d[None, :]
        q = tl.load(q_ptr + q_offset, mask=row_valid[:, None] & in_head, other=0.0)
        row_position = cached + token
        # Positions some row of the tile attends to; others are never loaded.
        first = context * 0
        if WINDOW > 0:
            first = tl.maximum(cached + query - WINDOW + 1, 0)
        stop = tl.minimum(context, cached + query + TOKENS)
        maximum = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, DP], tl.float32)
        for begin in range(first // TILE * TILE, stop, TILE):
            position = begin + t
            inside = (position >= first) & (position < stop)
            block = tl.load(
                table_ptr + sequence * table_stride + position // BS, mask=inside, other=0
            ).to(tl.int64)
            offset = (block * HKV + kv_head) * (BS * D) + (position % BS) * D
            k = tl.load(
                keys_ptr + offset[None, :] + d[:, None],
                mask=inside[None, :] & (d < D)[:, None],
                other=0.0,
            )
            score = dot(q, k, tl.zeros([ROWS, TILE], tl.float32), UPCAST) * scale
            if HAS_CAP:
                score = soft_cap(score, cap)
            distance = row_position[:, None] - position[None, :]
            keep = (distance >= 0) & inside[None, :]
            if WINDOW > 0:
                keep = keep & (distance < WINDOW)
            score = tl.where(keep, score * LOG2E, float("-inf"))
            highest = tl.maximum(maximum, tl.max(score, 1))
            # A row may attend to nothing yet: -inf - -inf would be NaN.
            base = tl.where(highest == float("-inf"), 0.0, highest)
            weight = tl.exp2(score - base[:, None])
            fade = tl.exp2(maximum - base)
            total = total * fade + tl.sum(weight, 1)
            v = tl.load(
                values_ptr + offset[:, None] + d[None, :],
                mask=inside[:, None] & in_head,
                other=0.0,
            )
            weight = weight if UPCAST else weight.to(v.dtype)
            acc = dot(weight, v, acc * fade[:, None], UPCAST)
            maximum = highest
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + head).to(tl.float32) * LOG2E
            highest = tl.maximum(maximum, sink)
            fade = tl.exp2(maximum - highest)
            total = total * fade + tl.exp2(sink - highest)
            acc = acc * fade[:, None]
        # rows past the end of the chunk may have attended to nothing; they are not stored
        out = acc / tl.where(total > 0.0, total, 1.0)[:, None]
        tl.store(
            out_ptr + q_offset,
            out.to(out_ptr.dtype.element_ty),
            mask=row_valid[:, None] & in_head,
        )


def paged_prefill(
    q: Tensor,
    spec: AttentionSpec,
    batch: AttentionBatch,
    cache: BlockCache,
    sinks: Tensor | None,
    out: Tensor,
    launch: Launch,
    *,
    decodes_too: bool,
    upcast: bool,
) -> None:
    """Attention of the sequences with several rows in this step; see `Ops.paged_attention`.

    Args:
        q: [T, HQ, D].
        spec: The layer.
        batch: All rows.
        cache: Of this layer.
        sinks: [HQ] or None.
        out: [T, HQ, D]; the rows are written.
        launch: From the table.
        decodes_too: Compute sequences with one row as well.
        upcast: Multiply in float32, for the interpreter.
    """
    num_rows, num_sequences = q.shape[0], batch.context_lens.shape[0]
    group = spec.num_heads // spec.num_kv_heads
    rows = max(launch.rows, next_power_of_2(group))
    tokens = rows // group
    _prefill[(num_rows // tokens + num_sequences, spec.num_kv_heads)](
        q,
        cache.keys,
        cache.values,
        batch.block_table,
        batch.query_starts,
        batch.context_lens,
        q if sinks is None else sinks,
        out,
        num_sequences,
        batch.block_table.stride(0),
        spec.scale,
        spec.softcap or 0.0,
        HKV=spec.num_kv_heads,
        G=group,
        D=spec.head_dim,
        DP=max(16, next_power_of_2(spec.head_dim)),
        BS=cache.block_size,
        ROWS=rows,
        TOKENS=tokens,
        TILE=launch.tile,
        WINDOW=spec.window or 0,
        HAS_CAP=spec.softcap is not None,
        HAS_SINKS=sinks is not None,
        DECODES_TOO=decodes_too,
        UPCAST=upcast,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
