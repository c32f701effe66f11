"""transformers' modules over paged attention give transformers' own logits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.packed_model import (
    CPU,
    KERNELS,
    make_ops,
    prefill_at_once,
    prefill_in_chunks,
    prefill_then_decode,
    run_packed,
)
from support.tiny_models import (
    SMALL,
    build,
    facts,
    oracle_logits,
    random_sequences,
    relative_error,
    save,
)
from triolet.config import ModelConfig
from triolet.errors import ConfigError
from triolet.models.loader import load_model
from triolet.models.transformers_backend import TransformersCausalLM
from triolet_kernels import Kernels
from triolet_kernels.reference.reference_ops import ReferenceOps

LENGTHS = [41, 5, 70]

GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "n_inner": 96}
MOE = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2),
    "gpt_neox": ("gpt_neox", {}),
    "opt": ("opt", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "mixtral": ("mixtral", {**MOE, "sliding_window": 8}),
    "stablelm": ("stablelm", {"partial_rotary_factor": 0.5}),
    "cohere": ("cohere", {"logit_scale": 0.25}),
    "starcoder2": ("starcoder2", {"sliding_window": 8}),
    "gpt_oss": ("gpt_oss", {**MOE, "head_dim": 16, "sliding_window": 8}),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 8}),
}


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", CASES)
def test_logits_equal_transformers(name: str, kernels: Kernels, tmp_path: Path) -> None:
    model_type, fields = CASES[name]
    oracle_model = build(model_type, **fields)
    ops = make_ops(kernels, torch.float32)
    config = ModelConfig(model_implementation="transformers")
    model = load_model(save(oracle_model, tmp_path), ops, config, lambda _: None)
    assert isinstance(model, TransformersCausalLM)
    sequences = random_sequences(LENGTHS)
    oracle = oracle_logits(oracle_model, sequences)
    assert torch.cat(oracle).std() > 0.3, "logits that do not spread would prove nothing"
    for steps in (
        prefill_at_once(LENGTHS),
        prefill_in_chunks(LENGTHS, 7),
        prefill_then_decode(LENGTHS, 4),
    ):
        result = run_packed(model, ops, sequences, steps)
        assert relative_error(result, oracle) < 1e-4


# no attention of the usual kind, a recurrence beside it, a convolution, ALiBi
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "bloom": ("bloom", {"n_layer": 2, "n_head": 4}, "0 of its [23] layers"),
    "mamba": ("mamba", {"num_hidden_layers": 2}, "0 of its 2 layers"),
    "minimax": ("minimax", {**MOE, "head_dim": 16}, "1 of its 2 layers"),
    "falcon_h1": (
        "falcon_h1",
        {"head_dim": 16, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_ssm": 128},
        "tokens mix outside attention",
    ),
    "falcon-alibi": ("falcon", {"alibi": True, "num_kv_heads": 4}, "ALiBi"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_packed_is_refused_by_name(name: str, tmp_path: Path) -> None:
    model_type, fields, reason = REFUSED[name]
    saved = save(build(model_type, **fields), tmp_path)
    with pytest.raises(ConfigError, match=reason) as caught:
        load_model(saved, ReferenceOps(CPU, torch.float32), ModelConfig(), lambda _: None)
    assert saved.architecture in caught.value.message


def test_unknown_architecture_names_transformers_and_the_cause(tmp_path: Path) -> None:
    config = {"architectures": ["NoSuchForCausalLM"], "model_type": "no_such"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="cannot load NoSuchForCausalLM"):
        load_model(
            facts(tmp_path, config), ReferenceOps(CPU, torch.float32), ModelConfig(), lambda _: None
        )


def test_two_models_in_one_process_do_not_meet(tmp_path: Path) -> None:
    """Attention is registered once per process; what it does hangs on each model's modules."""
    config = ModelConfig(model_implementation="transformers")
    ops = ReferenceOps(CPU, torch.float32)
    oracles = [build("gpt_neox", seed=1), build("gpt2", seed=2, **GPT2)]
    models = [
        load_model(save(oracle, tmp_path / str(i)), ops, config, lambda _: None)
        for i, oracle in enumerate(oracles)
    ]
    sequences = random_sequences([20, 9])
    for model, oracle in zip(models, oracles, strict=True):
        result = run_packed(model, ops, sequences, prefill_in_chunks([20, 9], 6))
        assert relative_error(result, oracle_logits(oracle, sequences)) < 1e-4


def test_random_weights_depend_on_the_seed_alone(tmp_path: Path) -> None:
    config = {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", **SMALL}
    ops = ReferenceOps(CPU, torch.float32)
    sequences = random_sequences([9])

    def logits(seed: int) -> torch.Tensor:
        model = load_model(facts(tmp_path, config, seed), ops, ModelConfig(), lambda _: None)
        return run_packed(model, ops, sequences, prefill_at_once([9]))[0]

    assert torch.equal(logits(1), logits(1))
    assert not torch.equal(logits(1), logits(2))
