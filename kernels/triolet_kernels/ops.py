"""The operations a model is made of: one protocol, several implementations.

A model is given an `Ops` and calls nothing else, so that which kernels run is decided once,
in `triolet_kernels.select_ops`, and a test can run any model on any implementation.
`reference/` holds the implementation in plain torch: it is the oracle of every other one.

Letters used in shapes: T rows of the packed batch, S sequences in it, H hidden size, HQ and
HKV query and key/value heads, D head dimension, BS tokens per KV block, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor

Linear = Callable[[Tensor], Tensor]
"""[T, K] -> [T, N]; owns its packed weight."""

Activation = Literal["silu", "gelu_tanh", "gelu"]


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionBatch:
    """How the rows of a packed batch attend; one per KV group and step.

    Attributes:
        positions: int64 [T], position of each row in its sequence.
        slots: int64 [T], block id * BS + offset where each row's key and value go.
        query_starts: int32 [S + 1], row of the first token of each sequence; last is T.
        context_lens: int32 [S], tokens of each sequence in the cache after this step.
        block_table: int32 [S, max blocks], block ids in order; entries before a window and
            after the context hold anything.
        max_query_len: The longest run of rows of one sequence.
        max_context_len: The largest of `context_lens`.
    """

    positions: Tensor
    slots: Tensor
    query_starts: Tensor
    context_lens: Tensor
    block_table: Tensor
    max_query_len: int
    max_context_len: int


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What one attention layer is; constant for the life of the model.

    Attributes:
        num_heads: HQ.
        num_kv_heads: HKV; HQ is a multiple of it.
        head_dim: D.
        scale: Factor on the scores.
        window: Tokens attended to, the current one included; None is all.
        softcap: scores = softcap * tanh(scores / softcap), if set.
        rotary_dim: Leading dimensions of a head that are rotated (half-split layout); 0 is none.
        norm_eps: Epsilon of the q and k norms.
        norm_offset: Added to the q and k norm weights (1.0 for gemma).
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    rotary_dim: int = 0
    norm_eps: float = 1e-6
    norm_offset: float = 0.0


class KVCache(Protocol):
    """Keys and values of one layer, in the layout its `Ops` likes. Opaque to everybody else."""

    @property
    def num_blocks(self) -> int:
        """Blocks it holds."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling parameters of R rows of logits, by row.

    Attributes:
        temperature: float32 [R]; 0 is greedy.
        top_k: int32 [R]; 0 keeps all.
        top_p: float32 [R]; 1 keeps all.
        min_p: float32 [R]; 0 keeps all.
        uniform: float64 [R] in [0, 1), already keyed by (seed, sample, position).
        all_greedy: Whether every row is greedy.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor
    all_greedy: bool


@dataclasses.dataclass(frozen=True, slots=True)
class PenaltyBatch:
    """Penalties on tokens that P rows have seen, N tokens in all.

    Attributes:
        rows: int64 [P], row of the logits.
        starts: int32 [P + 1], where the tokens of each row begin; last is N.
        ids: int64 [N], each token once per row.
        counts: float32 [N], occurrences in the row's output.
        pending: int64 [P], a token of the row's output that is not counted yet, or -1: the
            one that a step in flight samples. It may be among `ids` or not.
        repetition: float32 [P]; positive logits are divided by it, negative ones multiplied.
        frequency: float32 [P], subtracted for each occurrence.
        presence: float32 [P], subtracted if there is one.
    """

    rows: Tensor
    starts: Tensor
    ids: Tensor
    counts: Tensor
    pending: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor


class Ops(Protocol):
    """One implementation of every operation. Stateless but for scratch memory.

    Tensors are contiguous unless said otherwise. `dtype` is the model's: float32, bfloat16 or
    float16; sums are kept in float32 at least. With `batch_invariant` no row of a result
    depends, in any bit, on the other rows of the batch or on how a prefill was chunked.
    """

    name: str
    batch_invariant: bool
    device: torch.device
    dtype: torch.dtype

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Pack `weight` [N, K] (and `bias` [N]) and return x [T, K] -> x @ weight.T + bias."""
        ...

    def tied_embedding(
        self, weight: Tensor, *, head: bool
    ) -> tuple[Callable[[Tensor], Tensor], Linear | None]:
        """Pack a table [V, H] once for look-up and, if `head`, for the logits too.

        Returns:
            Look-up, ids int64 [T] -> [T, H] in the model's dtype; and the head,
            [R, H] -> float32 [R, V], or None.
        """
        ...

    def head(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Like `linear`, with float32 results: the logits."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        """x / rms(x) * (weight + offset) over the last axis, x [T, H] or [T, heads, D]."""
        ...

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0
    ) -> Tensor:
        """residual += x, in place; return rms_norm(residual, weight)."""
        ...

    def norm_add_rms_norm(
        self,
        x: Tensor,
        residual: Tensor,
        inner_weight: Tensor,
        weight: Tensor,
        eps: float,
        offset: float = 0.0,
    ) -> Tensor:
        """residual += rms_norm(x, inner_weight), in place; return rms_norm(residual, weight)."""
        ...

    def gated_activation(self, gate_up: Tensor, kind: Activation) -> Tensor:
        """act(gate) * up with gate_up [T, 2 * I] = [gate, up]; returns [T, I]."""
        ...

    def allocate_kv(self, num_blocks: int, block_size: int, spec: AttentionSpec) -> KVCache:
        """KV memory of one layer for `num_blocks` blocks of `block_size` tokens."""
        ...

    def kv_bytes_per_block(self, block_size: int, spec: AttentionSpec) -> int:
        """Bytes that `allocate_kv` takes per block."""
        ...

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
        """Norm q and k per head, rotate them, write k and v into the cache, return q.

        Args:
            qkv: [T, (HQ + 2 * HKV) * D], may be overwritten.
            spec: The layer.
            batch: Positions and slots of the rows.
            cache: Of this layer; written at `batch.slots`.
            cos: float32 [max positions, rotary_dim / 2], or None without rotation.
            sin: Like `cos`.
            q_norm: [D], or None.
            k_norm: [D], or None.

        Returns:
            q [T, HQ, D].
        """
        ...

    def paged_attention(
        self,
        q: Tensor,
        spec: AttentionSpec,
        batch: AttentionBatch,
        cache: KVCache,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of q [T, HQ, D] over the cache, this step's tokens included.

        Row t of sequence s attends to positions max(0, p - window + 1)..p, p its own position.
        `sinks` [HQ] joins the softmax denominator as one more score per head (gpt-oss).

        Returns:
            [T, HQ, D].
        """
        ...

    def penalize(self, logits: Tensor, batch: PenaltyBatch) -> None:
        """Apply penalties to float32 logits [R, V], in place; see `PenaltyBatch`."""
        ...

    def ban(self, logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
        """Set what is not allowed to -inf in some rows of float32 logits [R, V], in place.

        Args:
            logits: Contiguous.
            rows: int64 [G], each once.
            allowed: uint8 [G, bytes], bit i % 8 of byte i // 8 is token i; tokens beyond the
                last byte are not allowed.
        """
        ...

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Draw one token per row of float32 logits [R, V], exactly; -inf is never drawn.

        temperature, then top_k, then top_p over the renormalised rest, then min_p, then the
        inverse CDF of `uniform` over the kept tokens in the order of their ids. Ties at a
        threshold are kept in the order of ids.

        Returns:
            int64 [R].
        """
        ...

    def top_logprobs(
        self, logits: Tensor, tokens: Tensor, k: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """log_softmax of float32 logits [R, V] at `tokens` int64 [R] and at the k best.

        Returns:
            logprob float32 [R] and rank int64 [R] (1 is best) of `tokens`; ids int64 [R, k] and
            logprobs float32 [R, k] of the best, best first, ties by id.
        """
        ...
