"""`ReferenceOps`: the operations of `triolet_kernels.ops.Ops` in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from triolet_kernels.ops import (
    Activation,
    AttentionBatch,
    AttentionSpec,
    KVCache,
    Linear,
    PenaltyBatch,
    SamplingBatch,
)
from triolet_kernels.reference import bitmask, kv_cache, penalties
from triolet_kernels.reference.activation import gated_activation
from triolet_kernels.reference.attention_plan import KV_TILE, AttentionPlan, plan_attention
from triolet_kernels.reference.linear import linear, linear_row_tiles
from triolet_kernels.reference.paged_attention import paged_attention
from triolet_kernels.reference.rms_norm import rms_norm
from triolet_kernels.reference.rope_and_store import rope_and_store
from triolet_kernels.reference.sample import sample
from triolet_kernels.reference.top_logprobs import top_logprobs

# Rows of one sequence per product in batch-invariant mode: prefill reads a KV tile once for
# that many rows, and a decode wastes the products of all but one.
_INVARIANT_QUERY_TILE = 8

# The same where any shape will do: a prefill chunk is cut into pieces of at most this.
_QUERY_TILE_MAX = 64

# float32 scores held at a time (64 MiB).
_SCORE_ELEMENTS = 1 << 24

# Plans kept: one per window of a model (at most a few), of the batch that is computed now.
_PLANS_MAX = 4


class ReferenceOps:
    """Plain torch on any device; the meaning of every operation is in `Ops`.

    The head computes in the model's dtype and converts, as transformers does, so bfloat16
    logits are rounded to bfloat16.
    """

    name = "reference"

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        batch_invariant: bool = False,
        threads: int | None = None,
    ) -> None:
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise ValueError(f"dtype must be float32, bfloat16 or float16, not {dtype}")
        self.device = device
        self.dtype = dtype
        self.batch_invariant = batch_invariant
        if threads is not None and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        self._linear = linear_row_tiles if batch_invariant else linear
        self._plans: dict[
            tuple[int | None, int, int], tuple[AttentionBatch, tuple[AttentionPlan, ...]]
        ] = {}

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """See `Ops.linear`."""
        weight, bias = self._own(weight), None if bias is None else self._own(bias)
        return lambda x: self._linear(x, weight, bias)

    def head(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """See `Ops.head`."""
        project = self.linear(weight, bias)
        return lambda x: project(x).to(torch.float32)

    def tied_embedding(
        self, weight: Tensor, *, head: bool
    ) -> tuple[Callable[[Tensor], Tensor], Linear | None]:
        """See `Ops.tied_embedding`."""
        weight = self._own(weight)
        look_up = lambda ids: functional.embedding(ids, weight)  # noqa: E731
        return look_up, self.head(weight) if head else None

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        """See `Ops.rms_norm`."""
        return rms_norm(x, weight, eps, offset)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0
    ) -> Tensor:
        """See `Ops.add_rms_norm`."""
        residual.add_(x)
        return rms_norm(residual, weight, eps, offset)

    def norm_add_rms_norm(
        self,
        x: Tensor,
        residual: Tensor,
        inner_weight: Tensor,
        weight: Tensor,
        eps: float,
        offset: float = 0.0,
    ) -> Tensor:
        """See `Ops.norm_add_rms_norm`."""
        residual.add_(rms_norm(x, inner_weight, eps, offset))
        return rms_norm(residual, weight, eps, offset)

    def gated_activation(self, gate_up: Tensor, kind: Activation) -> Tensor:
        """See `Ops.gated_activation`."""
        return gated_activation(gate_up, kind, batch_invariant=self.batch_invariant)

    def allocate_kv(self, num_blocks: int, block_size: int, spec: AttentionSpec) -> KVCache:
        """See `Ops.allocate_kv`."""
        return kv_cache.allocate(num_blocks, block_size, spec, self.device, self.dtype)

    def kv_bytes_per_block(self, block_size: int, spec: AttentionSpec) -> int:
        """See `Ops.kv_bytes_per_block`."""
        return kv_cache.bytes_per_block(block_size, spec, self.dtype)

    def rope_and_store(
        self,
        qkv: Tensor,
        spec: AttentionSpec,
        batch: AttentionBatch,
        cache: KVCache,
        cos: Tensor | None,
        sin: Tensor | None,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
    ) -> Tensor:
        """See `Ops.rope_and_store`."""
        slots = cast("kv_cache.SlotCache", cache)
        return rope_and_store(qkv, spec, batch, slots, cos, sin, q_norm, k_norm)

    def paged_attention(
        self,
        q: Tensor,
        spec: AttentionSpec,
        batch: AttentionBatch,
        cache: KVCache,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See `Ops.paged_attention`."""
        slots = cast("kv_cache.SlotCache", cache)
        out = torch.empty_like(q)
        for plan in self._plan(batch, spec, slots.block_size):
            paged_attention(q, spec, plan, slots, sinks, out, batch_invariant=self.batch_invariant)
        return out

    def penalize(self, logits: Tensor, batch: PenaltyBatch) -> None:
        """See `Ops.penalize`."""
        penalties.penalize(logits, batch)

    def ban(self, logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
        """See `Ops.ban`."""
        bitmask.ban(logits, rows, allowed)

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """See `Ops.sample`."""
        return sample(logits, batch)

    def top_logprobs(
        self, logits: Tensor, tokens: Tensor, k: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See `Ops.top_logprobs`."""
        return top_logprobs(logits, tokens, k)

    def _own(self, weight: Tensor) -> Tensor:
        return weight.to(self.device, self.dtype).contiguous()

    def _plan(
        self, batch: AttentionBatch, spec: AttentionSpec, block_size: int
    ) -> tuple[AttentionPlan, ...]:
        """The plan of a batch, made once for all layers with the same window.

        It is found again by the identity of the batch, so the tensors of a batch must not
        change while its layers are computed.
        """
        query_tile = min(batch.max_query_len, _QUERY_TILE_MAX)
        if self.batch_invariant:
            query_tile = _INVARIANT_QUERY_TILE
        pairs_max = max(1, _SCORE_ELEMENTS // (query_tile * spec.num_heads * KV_TILE))
        key = (spec.window, block_size, pairs_max)
        known = self._plans.get(key)
        if known is not None and known[0] is batch:
            return known[1]
        plans = plan_attention(batch, spec.window, block_size, query_tile, pairs_max)
        if len(self._plans) >= _PLANS_MAX:
            self._plans.clear()
        self._plans[key] = (batch, plans)
        return plans
