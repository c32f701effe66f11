"""How long a context a model was made for, from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

LENGTH_KEYS = (
    "max_position_embeddings",  # most
    "n_positions",  # GPT-2
    "max_seq_len",  # MPT
    "seq_length",  # ChatGLM
    "max_sequence_length",  # InternLM
)
UNLIMITED = 1_000_000_000
"""transformers writes 10**30 where a tokenizer has no limit."""

INCLUDED_IN_LENGTH = frozenset({"default", "llama3", "longrope", "su", "proportional"})
"""RoPE types whose max_position_embeddings is already the extended length."""


def context_length(config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> int | None:
    """Tokens of context, RoPE scaling included; None if the files do not say.

    The rules are vLLM's (vllm/config/model.py, _get_and_verify_max_len): "linear" and
    "dynamic" scaling multiply the length in config.json, "yarn" multiplies the original one,
    the other types have the product there already.
    """
    lengths = [config[key] for key in LENGTH_KEYS if _is_length(config.get(key))]
    if not lengths:
        limit: Any = tokenizer_config.get("model_max_length")
        return int(limit) if _is_length(limit) and limit < UNLIMITED else None
    length: int = min(lengths)
    scaling = _rope_scaling(config)
    rope_type = scaling.get("rope_type", scaling.get("type", "default"))
    if rope_type in INCLUDED_IN_LENGTH:
        return length
    if rope_type == "yarn":
        original: Any = scaling.get("original_max_position_embeddings")
        length = original if _is_length(original) else length
    return int(length * float(scaling.get("factor") or 1.0))


def _rope_scaling(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """RoPE parameters of transformers 5 (`rope_parameters`) or 4 (`rope_scaling`).

    Parameters per kind of layer (Gemma 3) say nothing of the whole model: its config.json
    names the extended length, whatever way the layers get there.
    """
    scaling: Any = config.get("rope_parameters") or config.get("rope_scaling") or {}
    per_layer = any(isinstance(value, dict) for value in scaling.values())
    if per_layer or str(config.get("model_type", "")).startswith("gemma3"):
        return {}
    return cast("Mapping[str, Any]", scaling)


def _is_length(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1
