"""Models made in code: a few thousand random weights behind a real config and tokenizer.

They answer nonsense, at once and without a download: for tests, examples and trying things
out. "tiny-random" is a Llama; "tiny-random:FAMILY" has the traits of another family.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from triolet.errors import ConfigError
from triolet.model_source.progress import Progress
from triolet.model_source.store import stored_directory

PREFIX = "tiny-random"
VERSION = 1
"""Part of the directory's name: raise it when the files change."""

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
MERGED_WORDS = ("the", "and", "ing", "ion", "hello", "world", " a", " the", " of", " to", " in")
"""Become tokens of several bytes, so that not every token is one character."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

COMMON: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "dtype": "float32",
    "vocab_size": 320,  # more rows than tokens: real models pad theirs
}

SLIDING = {"sliding_window": 32}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", **SLIDING},
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "use_sliding_window": False,
        **SLIDING,
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 16,
        "rope_local_base_freq": 10000.0,
        "tie_word_embeddings": True,
        **SLIDING,
    },
}


def is_tiny_random(model: str) -> bool:
    """Whether a model's name asks for a model of this module."""
    return model == PREFIX or model.startswith(f"{PREFIX}:")


def tiny_random_directory(model: str, progress: Progress) -> Path:
    """The directory of a tiny model: config, tokenizer and template, no weights.

    Raises:
        ConfigError: There is no such family.
    """
    family = model.partition(":")[2] or "llama"
    if family not in FAMILIES:
        raise ConfigError(
            f"there is no {PREFIX}:{family}; families are {', '.join(FAMILIES)}", param="model"
        )
    return stored_directory(
        f"{PREFIX}-{family}-{VERSION}", model, lambda path: _write(path, family), progress
    )


def _write(directory: Path, family: str) -> None:
    config = {**COMMON, **FAMILIES[family]}
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "bos_token": END_OF_TEXT,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    generation_config = {"eos_token_id": [0, 2], "bos_token_id": 0}
    for name, content in (
        ("config.json", config),
        ("tokenizer_config.json", tokenizer_config),
        ("generation_config.json", generation_config),
    ):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))


def _letters(word: str) -> tuple[str, str]:
    """First letter and the rest, in the alphabet of byte-level BPE, where a space is Ġ."""
    spelled = word.replace(" ", "Ġ")
    return spelled[0], spelled[1:]


def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE: three special tokens, 256 bytes, and the few words of MERGED_WORDS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate((*SPECIAL_TOKENS, *alphabet))}
    merges: list[tuple[str, str]] = []
    for word in MERGED_WORDS:
        left, rest = _letters(word)
        for right in rest:
            if left + right not in vocab:
                vocab[left + right] = len(vocab)
                merges.append((left, right))
            left += right
    assert len(vocab) < COMMON["vocab_size"]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS]
    )
    return tokenizer
