"""Model directories in Hugging Face's layout, written without torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from triolet.model_source.tiny_random import byte_level_tokenizer

CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 8,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
}


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def write_weights(path: Path, *names: str) -> None:
    save_file({name: np.ones((4, 8), dtype=np.float32) for name in names}, path)


def write_model(directory: Path, **config: object) -> Path:
    """A directory that `describe` accepts; `config` overrides config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", {**CONFIG, **config})
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))
    write_weights(directory / "model.safetensors", "lm_head.weight")
    return directory
