"""The generic decoder gives transformers' logits, for every family and way of batching."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from support.packed_model import (
    KERNELS,
    make_ops,
    prefill_at_once,
    prefill_in_chunks,
    prefill_then_decode,
    run_packed,
)
from support.tiny_models import build, oracle_logits, random_sequences, relative_error, save
from triolet.config import ModelConfig
from triolet.models import registry
from triolet.models.decoder import Decoder
from triolet.models.describe import describe
from triolet.models.loader import load_model
from triolet.models.spec import DecoderSpec, LayerSpec
from triolet.models.weights import SafetensorsWeights
from triolet_kernels import Kernels

TOLERANCE = 1e-4
LENGTHS = [41, 5, 70]  # longer than a window of 8, than blocks of 16 and a KV tile of 64

GEMMA = {"head_dim": 16}
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
YARN_ROPE = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LONG_ROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0],
}  # fmt: skip

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-biased": (
        "llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
    ),
    "llama-head-dim": ("llama", {"head_dim": 24, "num_key_value_heads": 1}),
    "llama-linear": (
        "llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}
    ),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-yarn": ("llama", {"rope_parameters": YARN_ROPE}),
    "mistral": ("mistral", {"sliding_window": 8}),
    "mistral-no-window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": (
        "qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    ),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "gemma": ("gemma", GEMMA),
    "gemma2": (
        "gemma2",
        {
            **GEMMA,
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 8.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {**GEMMA, "sliding_window": 8, "query_pre_attn_scalar": 24, "num_hidden_layers": 7},
    ),
    "gemma3-softcap": (
        "gemma3_text", {**GEMMA, "sliding_window": 8, "final_logit_softcapping": 3.0}
    ),
    "phi3": ("phi3", {"sliding_window": 8}),
    "phi3-partial-long": (
        "phi3",
        {
            "rope_parameters": {**LONG_ROPE, "partial_rotary_factor": 0.5},
            "max_position_embeddings": 256,
            "original_max_position_embeddings": 256,
        },
    ),
    "granite": (
        "granite",
        {
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
    ),
    "olmo2": ("olmo2", {}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4}),
    "smollm3-window": (
        "smollm3",
        {"use_sliding_window": True, "sliding_window": 8, "no_rope_layer_interval": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", CASES)
def test_logits_equal_transformers(name: str, kernels: Kernels, tmp_path: Path) -> None:
    model_type, fields = CASES[name]
    oracle_model = build(model_type, **fields)
    ops = make_ops(kernels, torch.float32)
    config = ModelConfig(model_implementation="triolet")
    decoder = load_model(save(oracle_model, tmp_path), ops, config, lambda _: None)
    assert isinstance(decoder, Decoder)
    sequences = random_sequences(LENGTHS)
    oracle = oracle_logits(oracle_model, sequences)
    assert torch.cat(oracle).std() > 0.5, "logits that do not spread would prove nothing"
    ways = {
        "at once": prefill_at_once(LENGTHS),
        "in chunks of 7": prefill_in_chunks(LENGTHS, 7),
        "then decode": prefill_then_decode(LENGTHS, 4),
    }
    for way, steps in ways.items():
        result = run_packed(decoder, ops, sequences, steps)
        assert relative_error(result, oracle) < TOLERANCE, way


def every_layer(change: Callable[[LayerSpec], LayerSpec]) -> Callable[[DecoderSpec], DecoderSpec]:
    return lambda spec: attrs.evolve(spec, layers=tuple(change(layer) for layer in spec.layers))


def attention(**fields: object) -> Callable[[DecoderSpec], DecoderSpec]:
    changes: dict[str, Any] = fields
    return every_layer(
        lambda layer: attrs.evolve(layer, attention=dataclasses.replace(layer.attention, **changes))
    )


def of_spec(**fields: object) -> Callable[[DecoderSpec], DecoderSpec]:
    changes: dict[str, Any] = fields
    return lambda spec: attrs.evolve(spec, **changes)


def all_layers_rotate(spec: DecoderSpec) -> DecoderSpec:
    first = spec.layers[0]
    assert first.rope is not None
    return every_layer(
        lambda layer: attrs.evolve(layer, attention=first.attention, rope=first.rope)
    )(spec)


def one_theta(spec: DecoderSpec) -> DecoderSpec:
    full = spec.ropes["full_attention"]
    return attrs.evolve(spec, ropes=dict.fromkeys(spec.ropes, full))


def plain_rope(spec: DecoderSpec) -> DecoderSpec:
    return attrs.evolve(
        spec, ropes={key: attrs.evolve(r, kind="default") for key, r in spec.ropes.items()}
    )


# what is switched off -> (a case of CASES that has it, how)
SWITCHES: dict[str, tuple[str, Callable[[DecoderSpec], DecoderSpec]]] = {
    "window": ("mistral", attention(window=None)),
    "window from a layer on": ("qwen2-window", attention(window=None)),
    "attention soft cap": ("gemma2", attention(softcap=None)),
    "logits soft cap": ("gemma3-softcap", of_spec(logits_softcap=None)),
    "norm of each head": ("qwen3", of_spec(qk_norm=None)),
    "norm of whole vectors": ("olmo2", of_spec(qk_norm=None)),
    "qkv bias": ("qwen2", of_spec(qkv_bias=False)),
    "output bias": ("llama-tied-biased", of_spec(o_bias=False)),
    "mlp bias": ("llama-tied-biased", of_spec(mlp_bias=False)),
    "attention scale": ("gemma2", attention(scale=0.25)),
    "norm offset": ("gemma", of_spec(norm_offset=0.0)),
    "embedding scale": ("gemma", of_spec(embedding_scale=1.0)),
    "residual multiplier": ("granite", of_spec(residual_scale=1.0)),
    "logits divisor": ("granite", of_spec(logits_divisor=1.0)),
    "layers without positions": ("smollm3", all_layers_rotate),
    "local theta": ("gemma3", one_theta),
    "llama3 frequencies": ("llama-llama3", plain_rope),
    "yarn frequencies": ("llama-yarn", plain_rope),
    "longrope factors": ("phi3-partial-long", plain_rope),
    "activation": ("gemma", of_spec(activation="silu")),
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_feature_moves_logits_far_beyond_the_tolerance(switch: str, tmp_path: Path) -> None:
    """So `test_logits_equal_transformers` would have seen it missing or wrong."""
    name, change = SWITCHES[switch]
    model_type, fields = CASES[name]
    oracle_model = build(model_type, **fields)
    saved = save(oracle_model, tmp_path)
    ops = make_ops("reference", torch.float32)
    spec = change(describe(registry.need(saved.architecture), saved.config))
    with SafetensorsWeights([tmp_path / "model.safetensors"], torch.float32) as weights:
        changed = Decoder(spec, weights, ops, max_position=256, progress=lambda _: None)
    sequences = random_sequences(LENGTHS)
    result = run_packed(changed, ops, sequences, prefill_at_once(LENGTHS))
    oracle = oracle_logits(oracle_model, sequences)
    assert relative_error(result, oracle) > 100 * TOLERANCE


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "olmo2"])
def test_bfloat16_errs_no_more_than_transformers_in_bfloat16(
    name: str, kernels: Kernels, tmp_path: Path
) -> None:
    """Against float32: the error is that of the dtype, not ours."""
    model_type, fields = CASES[name]
    oracle_model = build(model_type, **fields)
    saved = save(oracle_model, tmp_path)
    sequences = random_sequences(LENGTHS)
    oracle = oracle_logits(oracle_model, sequences)
    theirs = relative_error(oracle_logits(oracle_model.to(torch.bfloat16), sequences), oracle)
    ops = make_ops(kernels, torch.bfloat16)
    decoder = load_model(saved, ops, ModelConfig(), lambda _: None)
    result = run_packed(decoder, ops, sequences, prefill_in_chunks(LENGTHS, 30))
    assert relative_error(result, oracle) < 1.5 * theirs
