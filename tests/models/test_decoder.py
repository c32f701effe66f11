"""The generic decoder gives transformers' logits, for every family and way of batching."""

from pathlib import Path
from typing import Any

import pytest
import torch

from support.packed_model import (
    prefill_at_once,
    prefill_in_chunks,
    prefill_then_decode,
    run_packed,
)
from support.tiny_models import (
    HFModel,
    build,
    oracle_logits,
    random_sequences,
    relative_error,
    save,
)
from triolet.config import ModelConfig
from triolet.models.decoder import Decoder
from triolet.models.loader import load_model
from triolet_kernels.reference.reference_ops import ReferenceOps

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
    "gemma2": ("gemma2", {**GEMMA, "sliding_window": 8, "query_pre_attn_scalar": 24}),
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


def load(
    directory: Path, model: HFModel, batch_invariant: bool = False
) -> tuple[Decoder, ReferenceOps]:
    ops = ReferenceOps(torch.device("cpu"), torch.float32, batch_invariant=batch_invariant)
    facts = save(model, directory)
    loaded = load_model(facts, ops, ModelConfig(model_implementation="triolet"), lambda _: None)
    assert isinstance(loaded, Decoder)
    return loaded, ops


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    model_type, fields = CASES[name]
    oracle_model = build(model_type, **fields)
    decoder, ops = load(tmp_path, oracle_model)
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
