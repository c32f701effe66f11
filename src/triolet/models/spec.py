"""A decoder, described by data: all that `Decoder` needs to know beside its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from triolet_kernels.ops import Activation, AttentionSpec

NormPlacement = Literal["pre", "sandwich", "post"]
"""Where the norms of a layer are: before each branch (llama), before and after it (gemma2),
or only after it, on the branch's output (olmo2)."""

QKNorm = Literal["head", "vector"]
"""A norm of q and k over each head (qwen3), or over all heads together (olmo2)."""


@attrs.frozen
class RopeSpec:
    """One table of rotary angles.

    Attributes:
        kind: "default", "linear", "dynamic", "llama3", "yarn" or "longrope".
        theta: Base of the frequencies.
        rotary_dim: Dimensions of a head that are rotated.
        max_position_embeddings: Of the config.
        parameters: What the kind needs besides, under transformers' names.
    """

    kind: str
    theta: float
    rotary_dim: int
    max_position_embeddings: int
    parameters: Mapping[str, Any]


@attrs.frozen
class LayerSpec:
    """One layer.

    Attributes:
        attention: Its attention.
        rope: Key into `DecoderSpec.ropes`; None is a layer without positions (NoPE).
    """

    attention: AttentionSpec
    rope: str | None


@attrs.frozen(kw_only=True)
class DecoderSpec:
    """A decoder-only transformer with RMS norms, rotary positions and a gated MLP.

    Attributes:
        family: Name of the family, for people.
        hidden_size: H.
        intermediate_size: Width of the MLP.
        vocab_size: Rows of the embedding and of the head.
        layers: One per layer.
        ropes: Tables of angles by key.
        norms: Where the norms are.
        norm_eps: Epsilon of every norm.
        norm_offset: Added to every norm weight.
        qk_norm: Norm of q and k, if there is one.
        qkv_bias: Whether the q, k and v projections have biases.
        o_bias: Whether the output projection has one.
        mlp_bias: Whether the MLP's projections have.
        activation: Of the MLP.
        embedding_scale: Factor on the embeddings, rounded to the model's dtype.
        residual_scale: Factor on the output of each branch.
        logits_divisor: Logits are divided by it.
        logits_softcap: logits = softcap * tanh(logits / softcap), if set.
        tied: Whether the head is the embedding.
    """

    family: str
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    layers: tuple[LayerSpec, ...]
    ropes: Mapping[str, RopeSpec]
    norms: NormPlacement
    norm_eps: float
    norm_offset: float
    qk_norm: QKNorm | None
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    activation: Activation
    embedding_scale: float
    residual_scale: float
    logits_divisor: float
    logits_softcap: float | None
    tied: bool
