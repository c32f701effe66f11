"""What stands between the QKV projection and attention: norms, rotation, the KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from triolet_kernels.ops import AttentionBatch, AttentionSpec
from triolet_kernels.reference import kv_cache
from triolet_kernels.reference.rms_norm import rms_norm
from triolet_kernels.reference.rotary import rotate


def rope_and_store(
    qkv: Tensor,
    spec: AttentionSpec,
    batch: AttentionBatch,
    cache: kv_cache.SlotCache,
    cos: Tensor | None,
    sin: Tensor | None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
) -> Tensor:
    """Norm q and k per head, rotate them, write k and v into the cache, return q.

    See `Ops.rope_and_store`. Norm and rotation are in float32 and rounded once, at the end.

    Raises:
        ValueError: The table of angles does not fit `spec.rotary_dim`.
    """
    num_rows = qkv.shape[0]
    first_value = spec.num_heads + spec.num_kv_heads
    heads = qkv.view(num_rows, first_value + spec.num_kv_heads, spec.head_dim)
    query, key = heads[:, : spec.num_heads], heads[:, spec.num_heads : first_value]
    value = heads[:, first_value:]
    if spec.rotary_dim == 0 and q_norm is None and k_norm is None:
        kv_cache.store(cache, batch.slots, key, value)
        return query.contiguous()
    wide_query, wide_key = query.to(torch.float32), key.to(torch.float32)
    if q_norm is not None:
        wide_query = rms_norm(wide_query, q_norm, spec.norm_eps, spec.norm_offset)
    if k_norm is not None:
        wide_key = rms_norm(wide_key, k_norm, spec.norm_eps, spec.norm_offset)
    if spec.rotary_dim:
        if cos is None or sin is None or cos.shape[-1] * 2 != spec.rotary_dim:
            found = "none" if cos is None else str(tuple(cos.shape))
            raise ValueError(
                f"rotary_dim {spec.rotary_dim} needs cos and sin [positions, "
                f"{spec.rotary_dim // 2}], got {found}"
            )
        row_cos, row_sin = cos[batch.positions], sin[batch.positions]
        wide_query = rotate(wide_query, row_cos, row_sin)
        wide_key = rotate(wide_key, row_cos, row_sin)
    kv_cache.store(cache, batch.slots, wide_key, value)
    return wide_query.to(qkv.dtype).contiguous()
