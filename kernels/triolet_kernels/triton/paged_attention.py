"""Causal attention over a paged cache; twin of reference/paged_attention.py.

A step of decodes takes `paged_decode`; one with chunks of prompts takes `paged_prefill`, and
`paged_decode` too for the sequences with one row. Where batch invariance is asked for
everything takes `paged_prefill`: the two sum in different orders.
"""

from __future__ import annotations

import torch
from torch import Tensor

from triolet_kernels.ops import AttentionBatch, AttentionSpec
from triolet_kernels.triton.kv_cache import BlockCache
from triolet_kernels.triton.launch_table import AttentionOp, Capability, LaunchKey, lookup
from triolet_kernels.triton.paged_decode import paged_decode
from triolet_kernels.triton.paged_prefill import paged_prefill


def paged_attention(
    q: Tensor,
    spec: AttentionSpec,
    batch: AttentionBatch,
    cache: BlockCache,
    sinks: Tensor | None,
    capability: Capability,
    *,
    batch_invariant: bool,
    upcast: bool = False,
) -> Tensor:
    """See `Ops.paged_attention`.

    Args:
        q: [T, HQ, D], contiguous.
        spec: The layer.
        batch: The rows.
        cache: Of this layer.
        sinks: [HQ] or None.
        capability: Of the device, for the launch table.
        batch_invariant: Sum every row in one order, decode or not.
        upcast: Multiply in float32, for the interpreter.

    Returns:
        [T, HQ, D].

    Raises:
        ValueError: Shapes do not fit the layer.
    """
    if tuple(q.shape[1:]) != (spec.num_heads, spec.head_dim) or not q.is_contiguous():
        raise ValueError(
            f"paged_attention: q must be contiguous [T, {spec.num_heads}, {spec.head_dim}], not "
            f"{tuple(q.shape)}"
        )
    group = spec.num_heads // spec.num_kv_heads
    out = torch.empty_like(q)

    def key(op: AttentionOp) -> LaunchKey:
        return LaunchKey(op, spec.head_dim, group, cache.block_size, capability)

    if not batch_invariant:
        launch = lookup(key("paged_decode"), q.element_size())
        paged_decode(q, spec, batch, cache, sinks, out, launch, upcast=upcast)
    if batch_invariant or batch.max_query_len > 1:
        launch = lookup(key("paged_prefill"), q.element_size())
        paged_prefill(
            q, spec, batch, cache, sinks, out, launch, decodes_too=batch_invariant, upcast=upcast
        )
    return out
