"""The model families that `Decoder` runs: what sets each apart, as data.

Defaults and meanings are those of transformers 5.24 (`models/<family>/configuration_*.py`
and `modeling_*.py`); tests/models/test_decoder.py compares the logits of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from triolet.models.hf_config import HFConfig
from triolet.models.spec import NormPlacement, QKNorm

FULL = "full_attention"
SLIDING = "sliding_attention"

_LLAMA_DEFAULTS: Final[Mapping[str, Any]] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_GEMMA_DEFAULTS: Final[Mapping[str, Any]] = {
    **_LLAMA_DEFAULTS,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}

Flag = bool | str
"""A constant, or the name of the config's field that says it."""


def _full(config: HFConfig) -> list[str]:
    return [FULL] * config.num_layers


def _one_window(config: HFConfig) -> list[str]:
    """Every layer has the window, if there is one (mistral, phi3)."""
    return [SLIDING if config.get("sliding_window") else FULL] * config.num_layers


def _qwen_windows(config: HFConfig) -> list[str]:
    """A window from layer `max_window_layers` on, if windows are used at all."""
    if not config.get("use_sliding_window"):
        return _full(config)
    first = config.size("max_window_layers")
    return [SLIDING if i >= first else FULL for i in range(config.num_layers)]


def _gemma_windows(config: HFConfig) -> list[str]:
    """Every n-th layer sees everything: n is 2 in gemma2, `sliding_window_pattern` in gemma3."""
    period = config.size("sliding_window_pattern")
    return [SLIDING if (i + 1) % period else FULL for i in range(config.num_layers)]


def _smollm3_windows(config: HFConfig) -> list[str]:
    """Layers without positions have the window, if windows are used."""
    if not config.get("use_sliding_window"):
        return _full(config)
    return [SLIDING if not rope else FULL for rope in _smollm3_rope_layers(config)]


def _smollm3_rope_layers(config: HFConfig) -> list[bool]:
    """Which layers have rotary positions: all but every `no_rope_layer_interval`-th."""
    stored = config.get("no_rope_layers")
    if stored is not None:
        return [bool(flag) for flag in stored[: config.num_layers]]
    interval = config.size("no_rope_layer_interval")
    return [bool((i + 1) % interval) for i in range(config.num_layers)]


def _rope_everywhere(config: HFConfig) -> list[bool]:
    return [True] * config.num_layers


def _scale_by_head_dim(config: HFConfig) -> float:
    return float(config.head_dim**-0.5)


def _scale_by_query_scalar(config: HFConfig) -> float:
    return float(config.number("query_pre_attn_scalar") ** -0.5)


def _embed_by_root_of_size(config: HFConfig) -> float:
    return float(config.size("hidden_size") ** 0.5)


@attrs.frozen(kw_only=True)
class Family:
    """What a family does differently from llama.

    Attributes:
        name: transformers' model type.
        architectures: Class names in config.json.
        defaults: Of fields that a config.json may leave out.
        refused: Fields that must be unset: what they ask for is not done here.
        norms: See `DecoderSpec`.
        norm_offset: See `DecoderSpec`.
        qk_norm: See `DecoderSpec`.
        qkv_bias: See `DecoderSpec`.
        o_bias: See `DecoderSpec`.
        mlp_bias: See `DecoderSpec`.
        attention_scale: Factor on the scores.
        layer_types: Layer types where config.json does not list them.
        rope_layers: Which layers have rotary positions.
        partial_rotary: Whether `partial_rotary_factor` is heard.
        rope_aliases: Other names of rope types.
        local_theta: The field that old configs keep the base of sliding layers in; their
            `rope_theta` and `rope_scaling` are those of the full layers only.
        activation_aliases: Other names of activations.
        embedding_scale: Factor on the embeddings.
        softcaps: Whether the two soft caps of gemma2 are heard: of attention, of logits.
        multipliers: Whether granite's multipliers are.
    """

    name: str
    architectures: tuple[str, ...]
    defaults: Mapping[str, Any] = _LLAMA_DEFAULTS
    refused: tuple[str, ...] = ()
    norms: NormPlacement = "pre"
    norm_offset: float = 0.0
    qk_norm: QKNorm | None = None
    qkv_bias: Flag = False
    o_bias: Flag = False
    mlp_bias: Flag = False
    attention_scale: Callable[[HFConfig], float] = _scale_by_head_dim
    layer_types: Callable[[HFConfig], list[str]] = _full
    rope_layers: Callable[[HFConfig], list[bool]] = _rope_everywhere
    partial_rotary: bool = False
    rope_aliases: Mapping[str, str] = {}
    local_theta: str | None = None
    activation_aliases: Mapping[str, str] = {}
    embedding_scale: Callable[[HFConfig], float] = lambda config: 1.0
    softcaps: tuple[bool, bool] = (False, False)
    multipliers: bool = False


FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        name="llama",
        architectures=("LlamaForCausalLM",),
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    Family(
        name="mistral",
        architectures=("MistralForCausalLM",),
        defaults={**_LLAMA_DEFAULTS, "sliding_window": 4096},
        layer_types=_one_window,
    ),
    Family(
        name="qwen2",
        architectures=("Qwen2ForCausalLM",),
        defaults={**_LLAMA_DEFAULTS, "sliding_window": 4096, "max_window_layers": 28},
        qkv_bias=True,
        layer_types=_qwen_windows,
    ),
    Family(
        name="qwen3",
        architectures=("Qwen3ForCausalLM",),
        defaults={
            **_LLAMA_DEFAULTS, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28
        },
        qk_norm="head",
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        layer_types=_qwen_windows,
    ),
    Family(
        name="gemma",
        architectures=("GemmaForCausalLM",),
        defaults=_GEMMA_DEFAULTS,
        refused=("use_bidirectional_attention",),
        # the first checkpoints said gelu and meant its tanh form (transformers #29402)
        activation_aliases={"gelu": "gelu_pytorch_tanh"},
        norm_offset=1.0,
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        embedding_scale=_embed_by_root_of_size,
    ),
    Family(
        name="gemma2",
        architectures=("Gemma2ForCausalLM",),
        defaults={
            **_GEMMA_DEFAULTS,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 2,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        refused=("use_bidirectional_attention",),
        norms="sandwich",
        norm_offset=1.0,
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        attention_scale=_scale_by_query_scalar,
        layer_types=_gemma_windows,
        embedding_scale=_embed_by_root_of_size,
        softcaps=(True, True),
    ),
    Family(
        name="gemma3",
        architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        defaults={
            **_GEMMA_DEFAULTS,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
        },
        refused=("use_bidirectional_attention", "attn_logit_softcapping"),
        norms="sandwich",
        norm_offset=1.0,
        qk_norm="head",
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        attention_scale=_scale_by_query_scalar,
        layer_types=_gemma_windows,
        embedding_scale=_embed_by_root_of_size,
        softcaps=(False, True),
        local_theta="rope_local_base_freq",
    ),
    Family(
        name="phi3",
        architectures=("Phi3ForCausalLM",),
        defaults={
            **_LLAMA_DEFAULTS, "rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096
        },
        layer_types=_one_window,
        partial_rotary=True,
        rope_aliases={"su": "longrope", "yarn": "longrope"},  # what early checkpoints call it
    ),
    Family(
        name="granite",
        architectures=("GraniteForCausalLM",),
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        mlp_bias="mlp_bias",
        attention_scale=lambda config: config.number("attention_multiplier"),
        defaults={
            **_LLAMA_DEFAULTS,
            "attention_multiplier": 1.0,
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
        },
        embedding_scale=lambda config: config.number("embedding_multiplier"),
        multipliers=True,
    ),
    Family(
        name="olmo2",
        architectures=("Olmo2ForCausalLM",),
        defaults={**_LLAMA_DEFAULTS, "rms_norm_eps": 1e-5},
        norms="post",
        qk_norm="vector",
        qkv_bias="attention_bias",
        o_bias="attention_bias",
    ),
    Family(
        name="smollm3",
        architectures=("SmolLM3ForCausalLM",),
        defaults={
            **_LLAMA_DEFAULTS,
            "rope_theta": 2_000_000.0,
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
            "no_rope_layer_interval": 4,
        },
        qkv_bias="attention_bias",
        o_bias="attention_bias",
        mlp_bias="mlp_bias",
        layer_types=_smollm3_windows,
        rope_layers=_smollm3_rope_layers,
    ),
)  # fmt: skip
