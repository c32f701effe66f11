"""Norm and rotate q and k, write k and v to the cache; twin of reference/rope_and_store.py.

One program per row and a few heads. Every element is read once; its partner in the rotation
(i and i + R) is read again, from the first-level cache.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from triolet_kernels.ops import AttentionBatch, AttentionSpec
from triolet_kernels.triton.jit import Value, fp32, jit
from triolet_kernels.triton.kv_cache import BlockCache
from triolet_kernels.triton.launch_table import cdiv, next_power_of_2

_TILE_ELEMENTS = 1024
"""Elements of the heads of one program: 8 for each thread of 4 warps."""


@jit
def _rope_and_store(
    qkv_ptr: Value,
    positions_ptr: Value,
    slots_ptr: Value,
    cos_ptr: Value,
    sin_ptr: Value,
    q_norm_ptr: Value,
    k_norm_ptr: Value,
    q_ptr: Value,
    keys_ptr: Value,
    values_ptr: Value,
    eps: fp32,
    offset: fp32,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    BS: tl.constexpr,
    HAS_Q_NORM: tl.constexpr,
    HAS_K_NORM: tl.constexpr,
    HEADS: tl.constexpr,
    DP: tl.constexpr,
) -> None:
    """HEADS heads of one row; qkv [T, HQ + 2 * HKV, D], q [T, HQ, D], caches [NB, HKV, BS, D].

    HALF is half of the rotated dimensions: d < HALF pairs with d + HALF.
    """
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    d = tl.arange(0, DP)
    is_query = head < HQ
    is_key = (head >= HQ) & (head < HQ + HKV)
    is_value = (head >= HQ + HKV) & (head < HQ + 2 * HKV)
    in_head = (d < D)[None, :]
    valid = (head < HQ + 2 * HKV)[:, None] & in_head
    source = qkv_ptr + row * ((HQ + 2 * HKV) * D) + head[:, None] * D
    x = tl.load(source + d[None, :], mask=valid, other=0.0).to(tl.float32)

    partner_d = tl.where(d < HALF, d + HALF, tl.where(d < 2 * HALF, d - HALF, d))
    partner = x
    if HALF > 0:
        partner = tl.load(source + partner_d[None, :], mask=valid, other=0.0).to(tl.float32)
    if HAS_Q_NORM or HAS_K_NORM:
        factor = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
        if HAS_Q_NORM:
            weight = tl.load(q_norm_ptr + d, mask=d < D, other=0.0).to(tl.float32) + offset
            swapped = tl.load(q_norm_ptr + partner_d, mask=d < D, other=0.0).to(tl.float32) + offset
            x = tl.where(is_query[:, None], x * factor * weight[None, :], x)
            partner = tl.where(is_query[:, None], partner * factor * swapped[None, :], partner)
        if HAS_K_NORM:
            weight = tl.load(k_norm_ptr + d, mask=d < D, other=0.0).to(tl.float32) + offset
            swapped = tl.load(k_norm_ptr + partner_d, mask=d < D, other=0.0).to(tl.float32) + offset
            x = tl.where(is_key[:, None], x * factor * weight[None, :], x)
            partner = tl.where(is_key[:, None], partner * factor * swapped[None, :], partner)
    if HALF > 0:
        position = tl.load(positions_ptr + row)
        rotated = d < 2 * HALF
        angle = position * HALF + d % HALF
        cos = tl.load(cos_ptr + angle, mask=rotated, other=1.0)
        sin = tl.load(sin_ptr + angle, mask=rotated, other=0.0)
        sin = tl.where(d < HALF, -sin, sin)
        turned = x * cos[None, :] + partner * sin[None, :]
        x = tl.where(is_value[:, None], x, turned)

    out = x.to(q_ptr.dtype.element_ty)
    target = q_ptr + row * (HQ * D) + head[:, None] * D + d[None, :]
    tl.store(target, out, mask=is_query[:, None] & in_head)
    slot = tl.load(slots_ptr + row)
    base = (slot // BS) * (HKV * BS * D) + (slot % BS) * D
    key_head = (head - HQ)[:, None] * (BS * D)
    tl.store(keys_ptr + base + key_head + d[None, :], out, mask=is_key[:, None] & in_head)
    value_head = (head - HQ - HKV)[:, None] * (BS * D)
    tl.store(values_ptr + base + value_head + d[None, :], out, mask=is_value[:, None] & in_head)


def rope_and_store(
    qkv: Tensor,
    spec: AttentionSpec,
    batch: AttentionBatch,
    cache: BlockCache,
    cos: Tensor | None,
    sin: Tensor | None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
) -> Tensor:
    """See `Ops.rope_and_store`. Norm and rotation are in float32 and rounded once, at the end.

    Raises:
        ValueError: Shapes do not fit the layer.
    """
    num_rows = qkv.shape[0]
    num_heads = spec.num_heads + 2 * spec.num_kv_heads
    if qkv.shape[1] != num_heads * spec.head_dim or not qkv.is_contiguous():
        raise ValueError(
            f"rope_and_store: qkv must be contiguous [T, {num_heads * spec.head_dim}], not "
            f"{tuple(qkv.shape)}"
        )
    half = spec.rotary_dim // 2
    if half and (cos is None or sin is None or cos.shape[-1] != half):
        found = "none" if cos is None else str(tuple(cos.shape))
        raise ValueError(
            f"rotary_dim {spec.rotary_dim} needs cos and sin [positions, {half}], got {found}"
        )
    width = max(16, next_power_of_2(spec.head_dim))
    heads = max(1, min(next_power_of_2(num_heads), _TILE_ELEMENTS // width))
    q = torch.empty((num_rows, spec.num_heads, spec.head_dim), dtype=qkv.dtype, device=qkv.device)
    _rope_and_store[(num_rows, cdiv(num_heads, heads))](
        qkv,
        batch.positions,
        batch.slots,
        qkv if cos is None else cos,
        qkv if sin is None else sin,
        qkv if q_norm is None else q_norm,
        qkv if k_norm is None else k_norm,
        q,
        cache.keys,
        cache.values,
        spec.norm_eps,
        spec.norm_offset,
        HQ=spec.num_heads,
        HKV=spec.num_kv_heads,
        D=spec.head_dim,
        HALF=half,
        BS=cache.block_size,
        HAS_Q_NORM=q_norm is not None,
        HAS_K_NORM=k_norm is not None,
        HEADS=heads,
        DP=width,
        num_warps=4,
    )
    return q
