import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer

from triolet.config import ModelConfig
from triolet.errors import ConfigError
from triolet.model_source.progress import silent
from triolet.model_source.resolve import resolve
from triolet.model_source.tiny_random import FAMILIES, byte_level_tokenizer, tiny_random_directory

TOKENIZER = byte_level_tokenizer()


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_CACHE", str(tmp_path))


@settings(max_examples=30)
@given(text=st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    ids = TOKENIZER.encode(text).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_a_token_can_be_several_characters_or_part_of_one() -> None:
    assert len(TOKENIZER.encode("hello world").ids) < len("hello world")
    assert len(TOKENIZER.encode("語").ids) == 3


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_resolves(family: str) -> None:
    facts = resolve(ModelConfig(f"tiny-random:{family}", load_seed=7))
    assert facts.name == f"tiny-random:{family}"
    assert facts.random_seed == 7
    assert facts.vocab_size == TOKENIZER.get_vocab_size() < facts.config["vocab_size"]
    assert facts.context_len == 2048
    assert facts.eos_token_ids == (0, 2)
    assert facts.chat_template is not None
    saved = Tokenizer.from_file(str(facts.directory / "tokenizer.json"))
    assert saved.get_vocab() == TOKENIZER.get_vocab()


def test_plain_name_is_a_llama_without_weights() -> None:
    facts = resolve(ModelConfig("tiny-random"))
    assert facts.architecture == "LlamaForCausalLM"
    assert facts.random_seed == 0
    assert not list(facts.directory.glob("*.safetensors"))


def test_unknown_family_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no tiny-random:gpt9; families are llama, "):
        tiny_random_directory("tiny-random:gpt9", silent)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_understands_the_directory(family: str) -> None:
    """The config means the same to transformers: its model has the shapes we ask for."""
    from transformers import AutoConfig, AutoTokenizer

    directory = tiny_random_directory(f"tiny-random:{family}", silent)
    config = AutoConfig.from_pretrained(directory)
    raw = json.loads((directory / "config.json").read_text())
    for key in ("hidden_size", "num_hidden_layers", "num_key_value_heads", "vocab_size"):
        assert getattr(config, key) == raw[key]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(tokenizer(prompt)["input_ids"]) == prompt
