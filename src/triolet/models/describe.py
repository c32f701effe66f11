"""A config.json and its family -> `DecoderSpec`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from triolet.errors import ConfigError
from triolet.models.families import FULL, SLIDING, Family, Flag
from triolet.models.hf_config import HFConfig
from triolet.models.spec import DecoderSpec, LayerSpec, RopeSpec
from triolet_kernels.ops import Activation, AttentionSpec

_ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


def describe(family: Family, fields: Mapping[str, Any]) -> DecoderSpec:
    """Read a config.json as a member of a family.

    Raises:
        ConfigError: A field is missing, malformed, or asks for something that is not done.
    """
    config = HFConfig(fields, family.defaults)
    _refuse(family, config)
    activation = config.get("hidden_activation") or config.get("hidden_act")
    activation = family.activation_aliases.get(activation, activation)
    if activation not in _ACTIVATIONS:
        raise ConfigError(
            f"config.json: activation {activation!r} is not supported; supported are "
            f"{', '.join(_ACTIVATIONS)}",
            param="model",
        )
    types = config.layer_types() or family.layer_types(config)
    return DecoderSpec(
        family=family.name,
        hidden_size=config.size("hidden_size"),
        intermediate_size=config.size("intermediate_size"),
        vocab_size=config.size("vocab_size"),
        layers=_layers(family, config, types),
        ropes={kind: _rope(family, config, kind) for kind in sorted(set(types))},
        norms=family.norms,
        norm_eps=config.number("rms_norm_eps"),
        norm_offset=family.norm_offset,
        qk_norm=family.qk_norm,
        qkv_bias=_flag(config, family.qkv_bias),
        o_bias=_flag(config, family.o_bias),
        mlp_bias=_flag(config, family.mlp_bias),
        activation=_ACTIVATIONS[activation],
        embedding_scale=family.embedding_scale(config),
        residual_scale=config.number("residual_multiplier") if family.multipliers else 1.0,
        logits_divisor=config.number("logits_scaling") if family.multipliers else 1.0,
        logits_softcap=config.get("final_logit_softcapping") if family.softcaps[1] else None,
        tied=bool(config.get("tie_word_embeddings")),
    )


def _refuse(family: Family, config: HFConfig) -> None:
    for name in ("quantization_config", *family.refused):
        if config.get(name):
            raise ConfigError(
                f"config.json: {name} is set, which triolet does not support for {family.name}; "
                "use a checkpoint without it",
                param="model",
            )


def _flag(config: HFConfig, flag: Flag) -> bool:
    return flag if isinstance(flag, bool) else bool(config.get(flag))


def _layers(family: Family, config: HFConfig, types: list[str]) -> tuple[LayerSpec, ...]:
    num_heads = config.size("num_attention_heads")
    num_kv_heads = num_heads
    if config.get("num_key_value_heads") is not None:
        num_kv_heads = config.size("num_key_value_heads")
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"config.json: num_attention_heads {num_heads} is not a multiple of "
            f"num_key_value_heads {num_kv_heads}",
            param="model",
        )
    layers: list[LayerSpec] = []
    for kind, has_rope in zip(types, family.rope_layers(config), strict=True):
        if kind not in (FULL, SLIDING):
            raise ConfigError(
                f"config.json: layer type {kind!r} is not supported for {family.name}",
                param="model",
            )
        rope = _rope(family, config, kind)
        attention = AttentionSpec(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=config.head_dim,
            scale=family.attention_scale(config),
            window=config.size("sliding_window") if kind == SLIDING else None,
            softcap=config.get("attn_logit_softcapping") if family.softcaps[0] else None,
            rotary_dim=rope.rotary_dim if has_rope else 0,
            norm_eps=config.number("rms_norm_eps"),
            norm_offset=family.norm_offset,
        )
        layers.append(LayerSpec(attention=attention, rope=kind if has_rope else None))
    return tuple(layers)


def _rope(family: Family, config: HFConfig, layer_type: str) -> RopeSpec:
    parameters = config.rope_parameters(layer_type)
    if family.local_theta and layer_type == SLIDING and not config.has_ropes_by_layer_type:
        parameters = {"rope_type": "default", "rope_theta": config.number(family.local_theta)}
    kind = str(parameters["rope_type"])
    rotary_dim = config.head_dim
    if family.partial_rotary:
        rotary_dim = int(rotary_dim * float(parameters.get("partial_rotary_factor", 1.0)))
    elif parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(
            f"config.json: partial_rotary_factor is not supported for {family.name}", param="model"
        )
    return RopeSpec(
        kind=family.rope_aliases.get(kind, kind),
        theta=float(parameters["rope_theta"]),
        rotary_dim=rotary_dim,
        max_position_embeddings=config.size("max_position_embeddings"),
        parameters=parameters,
    )
