import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.hf_directory import CONFIG, write_json, write_model
from triolet.config import ModelConfig
from triolet.errors import ConfigError
from triolet.model_source.describe import describe
from triolet.model_source.facts import ModelFacts
from triolet.model_source.tiny_random import byte_level_tokenizer

TOKENIZER_IDS = byte_level_tokenizer().get_vocab_size()


def facts_of(directory: Path, **settings: object) -> ModelFacts:
    return describe(directory, name="m", model=ModelConfig("m", **settings))  # type: ignore[arg-type]


def test_facts_of_a_plain_directory(tmp_path: Path) -> None:
    facts = facts_of(write_model(tmp_path))
    assert facts.name == "m"
    assert facts.directory == tmp_path
    assert facts.architecture == "LlamaForCausalLM"
    assert facts.config == CONFIG
    assert facts.context_len == 128
    assert facts.eos_token_ids == (2,)
    assert facts.generation == {}
    assert facts.chat_template is None
    assert facts.random_seed is None


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(TOKENIZER_IDS + 36, TOKENIZER_IDS), (TOKENIZER_IDS - 10, TOKENIZER_IDS - 10)],
)
def test_vocabulary_is_what_both_model_and_tokenizer_have(
    tmp_path: Path, rows: int, expected: int
) -> None:
    assert facts_of(write_model(tmp_path, vocab_size=rows)).vocab_size == expected


def test_added_tokens_count_as_known_ids(tmp_path: Path) -> None:
    write_model(tmp_path)
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens(["<added>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert facts_of(tmp_path).vocab_size == TOKENIZER_IDS + 1


def test_unigram_vocabulary_is_a_list(tmp_path: Path) -> None:
    write_model(tmp_path)
    vocab = [["<unk>", 0.0], ["</s>", 0.0], ["a", -1.0]]
    write_json(tmp_path / "tokenizer.json", {"model": {"type": "Unigram", "vocab": vocab}})
    assert facts_of(tmp_path).vocab_size == 3


@pytest.mark.parametrize(
    ("config_eos", "generation_eos", "expected"),
    [
        (2, None, (2,)),
        ([2, 1], None, (2, 1)),
        (2, 1, (1, 2)),
        (2, [1, 2, 0], (1, 2, 0)),
        (None, None, (1,)),  # the tokenizer's eos_token
        (5000, 2, (2,)),  # an id the model has no row for can never be sampled
    ],
)
def test_eos_ids_are_the_union_of_what_the_files_name(
    tmp_path: Path, config_eos: object, generation_eos: object, expected: tuple[int, ...]
) -> None:
    write_model(tmp_path, eos_token_id=config_eos)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": generation_eos})
    write_json(tmp_path / "tokenizer_config.json", {"eos_token": {"content": "<|im_start|>"}})
    assert facts_of(tmp_path).eos_token_ids == expected


def test_text_part_of_a_multimodal_config(tmp_path: Path) -> None:
    text = {"vocab_size": 280, "max_position_embeddings": 64}
    write_model(
        tmp_path,
        architectures=["Gemma3ForConditionalGeneration"],
        text_config=text,
        eos_token_id=[1],
    )
    facts = facts_of(tmp_path)
    assert facts.architecture == "Gemma3ForConditionalGeneration"
    assert facts.config == text
    assert facts.context_len == 64
    assert facts.eos_token_ids == (1,)


def test_sampling_defaults_have_the_names_of_sampling_params(tmp_path: Path) -> None:
    write_model(tmp_path)
    content = {
        "temperature": 0.6,
        "top_k": 20,
        "max_new_tokens": 9,
        "do_sample": True,
        "top_p": None,
    }
    write_json(tmp_path / "generation_config.json", content)
    assert facts_of(tmp_path).generation == {"temperature": 0.6, "top_k": 20, "max_tokens": 9}
    assert facts_of(tmp_path, generation_config="none").generation == {}


def test_impossible_sampling_default_is_refused_with_its_file(tmp_path: Path) -> None:
    write_model(tmp_path)
    write_json(tmp_path / "generation_config.json", {"temperature": -1})
    with pytest.raises(ConfigError, match=r"generation_config.json: temperature must be") as caught:
        facts_of(tmp_path)
    assert caught.value.param == "generation_config"


class TestChatTemplate:
    def test_file_wins_over_tokenizer_config(self, tmp_path: Path) -> None:
        write_model(tmp_path)
        write_json(tmp_path / "tokenizer_config.json", {"chat_template": "from config"})
        assert facts_of(tmp_path).chat_template == "from config"
        (tmp_path / "chat_template.jinja").write_text("from file")
        assert facts_of(tmp_path).chat_template == "from file"

    def test_default_of_several(self, tmp_path: Path) -> None:
        write_model(tmp_path)
        several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
        write_json(tmp_path / "tokenizer_config.json", {"chat_template": several})
        assert facts_of(tmp_path).chat_template == "d"

    def test_operators_template_wins(self, tmp_path: Path) -> None:
        write_model(tmp_path / "model")
        (tmp_path / "model/chat_template.jinja").write_text("own")
        given = tmp_path / "given.jinja"
        given.write_text("from the operator")
        assert facts_of(tmp_path / "model", chat_template=str(given)).chat_template == (
            "from the operator"
        )
        inline = "{% for m in messages %}{{ m.content }}{% endfor %}"
        assert facts_of(tmp_path / "model", chat_template=inline).chat_template == inline

    def test_missing_template_file(self, tmp_path: Path) -> None:
        write_model(tmp_path)
        with pytest.raises(ConfigError, match="neither a file nor a Jinja template") as caught:
            facts_of(tmp_path, chat_template="nowhere.jinja")
        assert caught.value.param == "chat_template"


def test_longer_context_than_the_model_has_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path)
    assert facts_of(tmp_path, max_model_len=128).context_len == 128
    with pytest.raises(ConfigError, match="max_model_len 129 is more than the 128") as caught:
        facts_of(tmp_path, max_model_len=129)
    assert caught.value.param == "max_model_len"


def test_unknown_context_must_be_given(tmp_path: Path) -> None:
    write_model(tmp_path, max_position_embeddings=None)
    with pytest.raises(ConfigError, match="say it with max_model_len"):
        facts_of(tmp_path)
    assert facts_of(tmp_path, max_model_len=77).context_len == 77


def _without(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def _with(name: str, text: str) -> Callable[[Path], None]:
    def spoil(directory: Path) -> None:
        (directory / name).write_text(text)

    return spoil


def _config(**change: object) -> Callable[[Path], None]:
    return _with("config.json", json.dumps({**CONFIG, **change}))


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 12\n"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without("config.json"), "has no config.json"),
        (_with("config.json", "{"), r"config.json is not valid JSON"),
        (_with("config.json", "[]"), "config.json must hold a JSON object"),
        (_with("config.json", LFS), "git-lfs pointer"),
        (_config(architectures=None), "names no architecture"),
        (_config(architectures=["T5"], is_encoder_decoder=True), "T5.*encoder-decoder"),
        (_config(quantization_config={"quant_method": "awq"}), "quantized with awq"),
        (_config(vocab_size=None), "gives no vocab_size"),
        (_without("tokenizer.json"), "has no tokenizer.json"),
        (_with("tokenizer.json", "{}"), "is not a tokenizer"),
        (_with("tokenizer.json", '{"model": {"vocab": {}}}'), "is not a tokenizer"),
        (_with("tokenizer_config.json", "nonsense"), "tokenizer_config.json is not valid JSON"),
        (_without("model.safetensors"), "has no weights"),
    ],
)
def test_broken_model_is_refused_in_one_sentence(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(write_model(tmp_path))
    with pytest.raises(ConfigError, match=message) as caught:
        facts_of(tmp_path)
    assert "\n" not in caught.value.message
    assert caught.value.param == "model"
    assert str(tmp_path) in caught.value.message
