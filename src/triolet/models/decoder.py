"""The generic decoder: one class for every family, described by `DecoderSpec`.

It calls nothing but `Ops` and a few torch operations on whole tensors, and no module of
transformers. A layer is two branches, attention and MLP. Each reads a normed copy of the
residual stream and ends in a `_Junction`, which adds its output to the stream and makes what
the next branch reads:

    stream --norm--> attention --junction--> MLP --junction--> next layer ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from triolet.models.rope import angle_tables
from triolet.models.spec import DecoderSpec, LayerSpec
from triolet.models.weights import Weights
from triolet_kernels.elementwise import map_in_place
from triolet_kernels.ops import AttentionBatch, AttentionSpec, KVCache, Linear, Ops

# Names of the two norms of each branch, (before it, after it), by placement and branch.
_NORM_NAMES = {
    ("pre", "attention"): ("input_layernorm", None),
    ("pre", "mlp"): ("post_attention_layernorm", None),
    ("sandwich", "attention"): ("input_layernorm", "post_attention_layernorm"),
    ("sandwich", "mlp"): ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ("post", "attention"): (None, "post_attention_layernorm"),
    ("post", "mlp"): (None, "post_feedforward_layernorm"),
}


@attrs.frozen
class _Junction:
    """Where the output of a branch joins the stream.

    Attributes:
        inner: Norm of the branch's output before it is added, [H] or None.
        outer: Norm of the stream that the next branch reads, [H]; None reads it as it is.
    """

    inner: Tensor | None
    outer: Tensor | None


@attrs.frozen
class _Layer:
    """Packed weights of one layer.

    Attributes:
        spec: The layer.
        qkv: [T, H] -> [T, (HQ + 2 * HKV) * D].
        output: [T, HQ * D] -> [T, H].
        gate_up: [T, H] -> [T, 2 * I].
        down: [T, I] -> [T, H].
        q_norm: [D] or [HQ * D], or None.
        k_norm: [D] or [HKV * D], or None.
        after_attention: Joins the attention's output.
        after_mlp: Joins the MLP's.
    """

    spec: LayerSpec
    qkv: Linear
    output: Linear
    gate_up: Linear
    down: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    after_attention: _Junction
    after_mlp: _Junction


class Decoder:
    """A `CausalLM` built on `Ops` alone."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: Weights,
        ops: Ops,
        *,
        max_position: int,
        progress: Callable[[str], None],
    ) -> None:
        """Pack the weights.

        Args:
            spec: What the model is.
            weights: Its tensors.
            ops: What computes.
            max_position: Longest context; the tables of angles have as many rows.
            progress: Told which layer is being loaded.

        Raises:
            ConfigError: A tensor is missing or has another shape, or the rotary parameters
                are not supported.
        """
        self.attention: Sequence[AttentionSpec] = [layer.attention for layer in spec.layers]
        self.vocab_size = spec.vocab_size
        self.max_position = max_position
        self.batch_invariant = ops.batch_invariant
        self.description = f"{spec.family} decoder, {ops.name} kernels"
        self._spec = spec
        self._ops = ops
        self._angles = {
            key: angle_tables(rope, max_position, ops.device) for key, rope in spec.ropes.items()
        }
        self._embed, self._head = self._load_vocabulary(weights)
        # what the model's dtype makes of it: gemma's sqrt(3072) is 55.5 in bfloat16
        self._embedding_scale = float(torch.tensor(spec.embedding_scale, dtype=ops.dtype))
        first, _ = _NORM_NAMES[spec.norms, "attention"]
        self._first_norm = self._norm(weights, f"layers.0.{first}") if first else None
        self._layers: list[_Layer] = []
        for index in range(len(spec.layers)):
            progress(f"loading layer {index + 1} of {len(spec.layers)}")
            self._layers.append(self._load_layer(weights, index))

    def forward(
        self, token_ids: Tensor, layers: Sequence[tuple[AttentionBatch, KVCache]]
    ) -> Tensor:
        """See `CausalLM.forward`."""
        spec = self._spec
        stream = self._embed(token_ids)
        if self._embedding_scale != 1.0:
            stream = stream * self._embedding_scale
        hidden = stream
        if self._first_norm is not None:
            hidden = self._ops.rms_norm(stream, self._first_norm, spec.norm_eps, spec.norm_offset)
        for layer, (batch, cache) in zip(self._layers, layers, strict=True):
            branch = self._attend(layer, hidden, batch, cache)
            hidden = self._join(branch, stream, layer.after_attention)
            gate_up = layer.gate_up(hidden)
            branch = layer.down(self._ops.gated_activation(gate_up, spec.activation))
            hidden = self._join(branch, stream, layer.after_mlp)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """See `CausalLM.logits`."""
        logits = self._head(hidden)
        if self._spec.logits_divisor != 1.0:
            logits = logits / self._spec.logits_divisor
        if self._spec.logits_softcap is not None:
            logits = map_in_place(torch.Tensor.tanh_, logits / self._spec.logits_softcap)
            logits.mul_(self._spec.logits_softcap)
        return logits

    def _attend(
        self, layer: _Layer, hidden: Tensor, batch: AttentionBatch, cache: KVCache
    ) -> Tensor:
        attention = layer.spec.attention
        qkv = layer.qkv(hidden)
        q_norm, k_norm = layer.q_norm, layer.k_norm
        if self._spec.qk_norm == "vector":
            assert q_norm is not None
            assert k_norm is not None
            qkv = self._norm_whole_vectors(qkv, q_norm, k_norm)
            q_norm = k_norm = None
        cos, sin = (None, None) if layer.spec.rope is None else self._angles[layer.spec.rope]
        query = self._ops.rope_and_store(qkv, attention, batch, cache, cos, sin, q_norm, k_norm)
        mixed = self._ops.paged_attention(query, attention, batch, cache)
        return layer.output(mixed.view(mixed.shape[0], -1))

    def _norm_whole_vectors(self, qkv: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        """Norm q [T, HQ * D] and k [T, HKV * D] over all their heads together (olmo2)."""
        q_size, k_size = q_norm.shape[0], k_norm.shape[0]
        query = qkv[:, :q_size].contiguous()
        key = qkv[:, q_size : q_size + k_size].contiguous()
        eps, offset = self._spec.norm_eps, self._spec.norm_offset
        return torch.cat(
            [
                self._ops.rms_norm(query, q_norm, eps, offset),
                self._ops.rms_norm(key, k_norm, eps, offset),
                qkv[:, q_size + k_size :],
            ],
            dim=1,
        )

    def _join(self, branch: Tensor, stream: Tensor, junction: _Junction) -> Tensor:
        """Add the output of a branch to the stream, in place; return what the next reads."""
        ops, eps, offset = self._ops, self._spec.norm_eps, self._spec.norm_offset
        if self._spec.residual_scale != 1.0:
            branch = branch * self._spec.residual_scale
        inner, outer = junction.inner, junction.outer
        if outer is None:
            return stream.add_(
                branch if inner is None else ops.rms_norm(branch, inner, eps, offset)
            )
        if inner is None:
            return ops.add_rms_norm(branch, stream, outer, eps, offset)
        return ops.norm_add_rms_norm(branch, stream, inner, outer, eps, offset)

    def _load_vocabulary(self, weights: Weights) -> tuple[Callable[[Tensor], Tensor], Linear]:
        shape = (self._spec.vocab_size, self._spec.hidden_size)
        table = weights.take("embed_tokens.weight", shape)
        embed, head = self._ops.tied_embedding(table, head=self._spec.tied)
        if head is None:
            head = self._ops.head(weights.take("lm_head.weight", shape))
        return embed, head

    def _load_layer(self, weights: Weights, index: int) -> _Layer:
        spec, layer = self._spec, self._spec.layers[index]
        attention = layer.attention
        prefix = f"layers.{index}"
        hidden, width = spec.hidden_size, spec.intermediate_size
        q_size = attention.num_heads * attention.head_dim
        k_size = attention.num_kv_heads * attention.head_dim
        q_norm = k_norm = None
        if spec.qk_norm is not None:
            per_head = spec.qk_norm == "head"
            q_shape = attention.head_dim if per_head else q_size
            k_shape = attention.head_dim if per_head else k_size
            q_norm = self._norm(weights, f"{prefix}.self_attn.q_norm", q_shape)
            k_norm = self._norm(weights, f"{prefix}.self_attn.k_norm", k_shape)
        return _Layer(
            spec=layer,
            qkv=self._fused(
                weights,
                f"{prefix}.self_attn.qkv_proj",
                {f"{prefix}.self_attn.{name}_proj": size
                 for name, size in (("q", q_size), ("k", k_size), ("v", k_size))},
                hidden,
                spec.qkv_bias,
            ),
            output=self._linear(
                weights, f"{prefix}.self_attn.o_proj", (hidden, q_size), spec.o_bias
            ),
            gate_up=self._fused(
                weights,
                f"{prefix}.mlp.gate_up_proj",
                {f"{prefix}.mlp.gate_proj": width, f"{prefix}.mlp.up_proj": width},
                hidden,
                spec.mlp_bias,
            ),
            down=self._linear(weights, f"{prefix}.mlp.down_proj", (hidden, width), spec.mlp_bias),
            q_norm=q_norm,
            k_norm=k_norm,
            after_attention=self._junction(weights, index, "attention"),
            after_mlp=self._junction(weights, index, "mlp"),
        )  # fmt: skip

    def _junction(self, weights: Weights, index: int, branch: str) -> _Junction:
        """The norm after this branch, and the one before the next, which may be the last."""
        norms = self._spec.norms
        _, after = _NORM_NAMES[norms, branch]
        if branch == "attention":
            following, _ = _NORM_NAMES[norms, "mlp"]
            outer = f"layers.{index}.{following}" if following else None
        elif index + 1 < len(self._spec.layers):
            following, _ = _NORM_NAMES[norms, "attention"]
            outer = f"layers.{index + 1}.{following}" if following else None
        else:
            outer = "norm"
        return _Junction(
            inner=self._norm(weights, f"layers.{index}.{after}") if after else None,
            outer=self._norm(weights, outer) if outer else None,
        )

    def _norm(self, weights: Weights, name: str, size: int | None = None) -> Tensor:
        return weights.take(f"{name}.weight", (size or self._spec.hidden_size,)).to(
            self._ops.device
        )

    def _linear(
        self, weights: Weights, name: str, shape: tuple[int, int], has_bias: bool
    ) -> Linear:
        weight = weights.take(f"{name}.weight", shape)
        bias = weights.take(f"{name}.bias", shape[:1]) if has_bias else None
        return self._ops.linear(weight, bias)

    def _fused(
        self, weights: Weights, fused: str, parts: dict[str, int], size_in: int, has_bias: bool
    ) -> Linear:
        """One product for several projections, stored together (phi3) or apart."""
        if weights.has(f"{fused}.weight"):
            return self._linear(weights, fused, (sum(parts.values()), size_in), has_bias)
        weight = torch.cat(
            [weights.take(f"{n}.weight", (size, size_in)) for n, size in parts.items()]
        )
        bias = None
        if has_bias:
            bias = torch.cat([weights.take(f"{n}.bias", (size,)) for n, size in parts.items()])
        return self._ops.linear(weight, bias)
