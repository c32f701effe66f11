"""Tiny random models made by transformers, on disk, and their logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from triolet.model_source.facts import ModelFacts

HFModel = Any
"""A transformers.PreTrainedModel; which attributes it has depends on its class."""

# Enough for windows, blocks and several layers of each kind to matter, small enough for CI.
SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def build(model_type: str, seed: int = 0, **fields: object) -> HFModel:
    """A float32 model of transformers in eval mode, with weights that spread its logits."""
    config = transformers.AutoConfig.for_model(model_type, **{**SMALL, **fields})
    torch.manual_seed(seed)
    factory: Any = transformers.AutoModelForCausalLM
    model = factory.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    spread(model, seed)
    return model


def spread(model: HFModel, seed: int) -> None:
    """Draw every parameter anew: logits with a deviation of a few, biases and norms that count."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                is_norm = "norm" in name or "ln" in name
                parameter.copy_(parameter + 0.3 * noise if is_norm else 0.5 * noise)
            elif "embed" in name or "wte" in name or "lm_head" in name:
                parameter.copy_(noise * 0.4)
            else:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
        model.tie_weights()


def save(model: HFModel, directory: Path, **kwargs: object) -> ModelFacts:
    """Save a model as safetensors and describe it."""
    model.save_pretrained(directory, **kwargs)
    config = json.loads((directory / "config.json").read_text())
    return facts(directory, config)


def facts(directory: Path, config: dict[str, Any], random_seed: int | None = None) -> ModelFacts:
    """Facts of a directory with this config.json."""
    return ModelFacts(
        name=directory.name,
        directory=directory,
        architecture=config["architectures"][0],
        config=config,
        vocab_size=config.get("vocab_size", SMALL["vocab_size"]),
        context_len=config.get("max_position_embeddings", SMALL["max_position_embeddings"]),
        eos_token_ids=(2,),
        generation={},
        random_seed=random_seed,
    )


def oracle_logits(model: HFModel, sequences: list[Tensor]) -> list[Tensor]:
    """transformers' logits of each sequence alone, without a cache."""
    return [model(input_ids=ids[None], use_cache=False).logits[0].float() for ids in sequences]


def random_sequences(lengths: list[int], vocab_size: int = 97, seed: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocab_size, (n,), generator=generator) for n in lengths]


def relative_error(result: list[Tensor], oracle: list[Tensor]) -> float:
    got, wanted = torch.cat(result).double(), torch.cat(oracle).double()
    return float((got - wanted).norm() / wanted.norm())
