"""A small decoder on any `Ops`: real attention, real KV cache, random weights, no files."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from triolet_kernels.ops import AttentionBatch, AttentionSpec, KVCache, Ops

HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 2, 1, 8, 16


class TinyCausalLM:
    """Attention layers with residuals; logits spread enough for greedy tokens to be safe.

    Args:
        ops: The kernels.
        windows: One layer per entry.
        vocab_size: Rows of the head.
        seed: Of the weights.
    """

    def __init__(
        self, ops: Ops, windows: Sequence[int | None], vocab_size: int = 48, seed: int = 0
    ) -> None:
        rng = torch.Generator().manual_seed(seed)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=rng).div(shape[-1] ** 0.5)

        self.attention: Sequence[AttentionSpec] = [
            AttentionSpec(HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM**-0.5, window, rotary_dim=HEAD_DIM)
            for window in windows
        ]
        self.vocab_size = vocab_size
        self.max_position = 512
        self.batch_invariant = ops.batch_invariant
        self.description = "TinyCausalLM"
        self.forward_tokens = 0
        self._ops = ops
        self._look_up, _ = ops.tied_embedding(3.0 * random(vocab_size, HIDDEN), head=False)
        self._head = ops.head(8.0 * random(vocab_size, HIDDEN))
        width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
        self._qkv = [ops.linear(3.0 * random(width, HIDDEN)) for _ in windows]
        self._out = [ops.linear(3.0 * random(HIDDEN, HEADS * HEAD_DIM)) for _ in windows]
        self._norm = torch.ones(HIDDEN, dtype=ops.dtype)
        angles = torch.outer(torch.arange(512.0), 100.0 ** -torch.linspace(0, 1, HEAD_DIM // 2))
        self._cos, self._sin = angles.cos(), angles.sin()

    def forward(
        self, token_ids: Tensor, layers: Sequence[tuple[AttentionBatch, KVCache]]
    ) -> Tensor:
        """See `CausalLM.forward`."""
        self.forward_tokens += len(token_ids)
        hidden = self._look_up(token_ids)
        ops = self._ops
        for i, (spec, (batch, cache)) in enumerate(zip(self.attention, layers, strict=True)):
            qkv = self._qkv[i](ops.rms_norm(hidden, self._norm, 1e-6))
            q = ops.rope_and_store(qkv, spec, batch, cache, self._cos, self._sin)
            attended = ops.paged_attention(q, spec, batch, cache)
            hidden = hidden + self._out[i](attended.reshape(len(token_ids), -1))
        return ops.rms_norm(hidden, self._norm, 1e-6)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `CausalLM.logits`."""
        return self._head(hidden)


def recompute_logits(model: TinyCausalLM, ops: Ops, token_ids: Sequence[int]) -> Tensor:
    """Logits [T, V] of one sequence, computed whole, in a cache of its own."""
    num_tokens = len(token_ids)
    positions = torch.arange(num_tokens)
    batch = AttentionBatch(
        positions=positions,
        slots=positions,
        query_starts=torch.tensor([0, num_tokens], dtype=torch.int32),
        context_lens=torch.tensor([num_tokens], dtype=torch.int32),
        block_table=torch.arange(-(-num_tokens // 8), dtype=torch.int32)[None],
        max_query_len=num_tokens,
        max_context_len=num_tokens,
    )
    layers = [(batch, ops.allocate_kv(-(-num_tokens // 8), 8, s)) for s in model.attention]
    return model.logits(model.forward(torch.tensor(token_ids), layers))
