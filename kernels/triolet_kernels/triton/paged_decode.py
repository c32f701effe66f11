"""Attention of one new token per sequence, its context split over programs.

    sequence of 1300 tokens, splits of 512     program 0    program 1    program 2
    partial results (max, sum, weighted v)   [0 .. 512)  [512 .. 1024)  [1024 .. 1300)
    merge                                       one program per row and head

How a context is split depends on its own length and on constants, never on the batch, so the
order of sums of a row is always the same. How many programs share the splits does depend on the
batch: few sequences need many to fill the device, many sequences few.

Rows of sequences with more than one token in this step are left to `paged_prefill`.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from triolet_kernels.ops import AttentionBatch, AttentionSpec
from triolet_kernels.triton.functions import LOG2E, dot, soft_cap
from triolet_kernels.triton.jit import Value, fp32, i32, jit
from triolet_kernels.triton.kv_cache import BlockCache
from triolet_kernels.triton.launch_table import Launch, cdiv, next_power_of_2

SPLIT_TOKENS_MIN = 512
"""Shortest split: below that the merge costs more than it gains (flash-decoding's choice too)."""

SPLITS_MAX = 32
"""Splits of one sequence; longer contexts get longer splits. Bounds the partial results."""

_PROGRAMS_WANTED = 1024
"""Programs that fill the largest device: 132 multiprocessors of an H200, a few programs each."""


@jit
def split_length(
    num_tokens: Value, SPLIT_MIN: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr
) -> Value:
    """Tokens per split of a sequence: a function of its length alone."""
    return tl.maximum(SPLIT_MIN, tl.cdiv(tl.cdiv(num_tokens, SPLITS), TILE) * TILE)


@jit
def first_token(num_tokens: Value, WINDOW: tl.constexpr) -> Value:
    """Position of the first token that the last one attends to."""
    first = num_tokens * 0
    if WINDOW > 0:
        first = tl.maximum(num_tokens - WINDOW, 0)
    return first


@jit
def _split(
    q_ptr: Value,
    keys_ptr: Value,
    values_ptr: Value,
    table_ptr: Value,
    starts_ptr: Value,
    lens_ptr: Value,
    stats_ptr: Value,
    partial_ptr: Value,
    table_stride: i32,
    split_stride: i32,
    scale: fp32,
    cap: fp32,
    HKV: tl.constexpr,
    G: tl.constexpr,
    GP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    BS: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    SPLIT_MIN: tl.constexpr,
    SPLITS: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    """Splits `program_id(2)`, + num_programs(2), ... of one sequence and KV head.

    q [T, HQ, D]; caches [NB, HKV, BS, D]; stats float32 [S, HQ, split_stride, 2] takes maximum
    (times log2 e) and sum, partial float32 [S, HQ, split_stride, D] the weighted values.
    """
    sequence = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = tl.load(starts_ptr + sequence).to(tl.int64)
    if tl.load(starts_ptr + sequence + 1) - row == 1:
        num_tokens = tl.load(lens_ptr + sequence)
        first = first_token(num_tokens, WINDOW)
        length = split_length(num_tokens - first, SPLIT_MIN, SPLITS, TILE)
        g = tl.arange(0, GP)
        d = tl.arange(0, DP)
        t = tl.arange(0, TILE)
        q_offset = (row * (HKV * G) + kv_head * G + g)[:, None] * D + d[None, :]
        q = tl.load(q_ptr + q_offset, mask=(g < G)[:, None] & (d < D)[None, :], other=0.0)
        for split in range(
            tl.program_id(2), tl.cdiv(num_tokens - first, length), tl.num_programs(2)
        ):
            start = first + split * length
            stop = tl.minimum(start + length, num_tokens)
            maximum = tl.full([GP], float("-inf"), tl.float32)
            total = tl.zeros([GP], tl.float32)
            acc = tl.zeros([GP, DP], tl.float32)
            for begin in range(start, stop, TILE):
                position = begin + t
                inside = position < stop
                block = tl.load(
                    table_ptr + sequence * table_stride + position // BS, mask=inside, other=0
                ).to(tl.int64)
                offset = (block * HKV + kv_head) * (BS * D) + (position % BS) * D
                k = tl.load(
                    keys_ptr + offset[None, :] + d[:, None],
                    mask=inside[None, :] & (d < D)[:, None],
                    other=0.0,
                )
                score = dot(q, k, tl.zeros([GP, TILE], tl.float32), UPCAST) * scale
                if HAS_CAP:
                    score = soft_cap(score, cap)
                score = tl.where(inside[None, :], score * LOG2E, float("-inf"))
                # every tile has a token inside, so the new maximum is finite
                highest = tl.maximum(maximum, tl.max(score, 1))
                weight = tl.exp2(score - highest[:, None])
                fade = tl.exp2(maximum - highest)
                total = total * fade + tl.sum(weight, 1)
                v = tl.load(
                    values_ptr + offset[:, None] + d[None, :],
                    mask=inside[:, None] & (d < D)[None, :],
                    other=0.0,
                )
                weight = weight if UPCAST else weight.to(v.dtype)
                acc = dot(weight, v, acc * fade[:, None], UPCAST)
                maximum = highest
            head = (sequence.to(tl.int64) * HKV + kv_head) * G + g
            place = head * split_stride + split
            tl.store(stats_ptr + place * 2, maximum, mask=g < G)
            tl.store(stats_ptr + place * 2 + 1, total, mask=g < G)
            tl.store(
                partial_ptr + place[:, None] * D + d[None, :],
                acc,
                mask=(g < G)[:, None] & (d < D)[None, :],
            )


@jit
def _merge(
    stats_ptr: Value,
    partial_ptr: Value,
    starts_ptr: Value,
    lens_ptr: Value,
    sinks_ptr: Value,
    out_ptr: Value,
    split_stride: i32,
    D: tl.constexpr,
    DP: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    SPLIT_MIN: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """out [T, HQ, D] of one sequence and query head.

    All SPLITS places are summed, empty ones as zeros: a sum over as many places as the batch
    needs would pair them differently in another batch.
    """
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.load(starts_ptr + sequence).to(tl.int64)
    if tl.load(starts_ptr + sequence + 1) - row == 1:
        num_tokens = tl.load(lens_ptr + sequence)
        num_tokens -= first_token(num_tokens, WINDOW)
        num_splits = tl.cdiv(num_tokens, split_length(num_tokens, SPLIT_MIN, SPLITS, TILE))
        split = tl.arange(0, SPLITS)
        d = tl.arange(0, DP)
        used = split < num_splits
        place = (sequence.to(tl.int64) * tl.num_programs(1) + head) * split_stride + split
        maximum = tl.load(stats_ptr + place * 2, mask=used, other=float("-inf"))
        total = tl.load(stats_ptr + place * 2 + 1, mask=used, other=0.0)
        highest = tl.max(maximum, 0)
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + head).to(tl.float32) * LOG2E
            highest = tl.maximum(highest, sink)
        fade = tl.exp2(maximum - highest)
        denominator = tl.sum(total * fade, 0)
        if HAS_SINKS:
            denominator += tl.exp2(sink - highest)
        partial = tl.load(
            partial_ptr + place[:, None] * D + d[None, :],
            mask=used[:, None] & (d < D)[None, :],
            other=0.0,
        )
        out = tl.sum(partial * fade[:, None], 0) / denominator
        target = out_ptr + (row * tl.num_programs(1) + head) * D + d
        tl.store(target, out.to(out_ptr.dtype.element_ty), mask=d < D)


def paged_decode(
    q: Tensor,
    spec: AttentionSpec,
    batch: AttentionBatch,
    cache: BlockCache,
    sinks: Tensor | None,
    out: Tensor,
    launch: Launch,
    *,
    upcast: bool,
) -> None:
    """Attention of the sequences with one row in this step; see `Ops.paged_attention`.

    Args:
        q: [T, HQ, D].
        spec: The layer.
        batch: All rows; others are passed over.
        cache: Of this layer.
        sinks: [HQ] or None.
        out: [T, HQ, D]; the rows are written.
        launch: From the table.
        upcast: Multiply in float32, for the interpreter.
    """
    num_sequences = batch.context_lens.shape[0]
    group = spec.num_heads // spec.num_kv_heads
    width = max(16, next_power_of_2(spec.head_dim))
    window = spec.window or 0
    longest = batch.max_context_len if not window else min(window, batch.max_context_len)
    num_splits = min(SPLITS_MAX, cdiv(longest, SPLIT_TOKENS_MIN))
    programs = max(1, _PROGRAMS_WANTED // (num_sequences * spec.num_kv_heads))
    places = (num_sequences, spec.num_heads, num_splits)
    stats = torch.empty((*places, 2), dtype=torch.float32, device=q.device)
    partial = torch.empty((*places, spec.head_dim), dtype=torch.float32, device=q.device)
    _split[(num_sequences, spec.num_kv_heads, min(num_splits, programs))](
        q,
        cache.keys,
        cache.values,
        batch.block_table,
        batch.query_starts,
        batch.context_lens,
        stats,
        partial,
        batch.block_table.stride(0),
        num_splits,
        spec.scale,
        spec.softcap or 0.0,
        HKV=spec.num_kv_heads,
        G=group,
        GP=max(launch.rows, next_power_of_2(group)),
        D=spec.head_dim,
        DP=width,
        BS=cache.block_size,
        TILE=launch.tile,
        WINDOW=window,
        HAS_CAP=spec.softcap is not None,
        SPLIT_MIN=SPLIT_TOKENS_MIN,
        SPLITS=SPLITS_MAX,
        UPCAST=upcast,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    _merge[(num_sequences, spec.num_heads)](
        stats,
        partial,
        batch.query_starts,
        batch.context_lens,
        q if sinks is None else sinks,
        out,
        num_splits,
        D=spec.head_dim,
        DP=width,
        TILE=launch.tile,
        WINDOW=window,
        HAS_SINKS=sinks is not None,
        SPLIT_MIN=SPLIT_TOKENS_MIN,
        SPLITS=SPLITS_MAX,
        num_warps=4,
    )
