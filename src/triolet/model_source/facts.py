"""What is known of a model before any tensor is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs


@attrs.frozen
class ModelFacts:
    """A model on disk, described by its small files.

    Attributes:
        name: What it is called in answers: the hub id, the directory's name, "demo".
        directory: Holds config.json, tokenizer.json and the safetensors files.
        architecture: First of `architectures` in config.json, such as "LlamaForCausalLM".
        config: config.json (the text part of a multi-modal one).
        vocab_size: Ids that the tokenizer knows and the model has rows for.
        context_len: Longest context the model was made for.
        eos_token_ids: Ids that end an output, from generation_config.json and config.json.
        generation: Sampling defaults of generation_config.json (temperature, top_p, ...).
        chat_template: Jinja source, if the model has one.
        random_seed: Weights are random, drawn from this seed: nothing is on disk.
    """

    name: str
    directory: Path
    architecture: str
    config: Mapping[str, Any]
    vocab_size: int
    context_len: int
    eos_token_ids: tuple[int, ...]
    generation: Mapping[str, Any]
    chat_template: str | None = None
    random_seed: int | None = None
