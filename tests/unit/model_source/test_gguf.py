import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from support.demo import need_demo
from support.gguf_file import CONTEXT, EPSILON, HEADS, KV_HEADS, write_gguf
from triolet.config import ModelConfig
from triolet.errors import ConfigError
from triolet.model_source.demo import DEMOS, demo_parts
from triolet.model_source.gguf import check_magic, converted_gguf
from triolet.model_source.progress import silent
from triolet.model_source.resolve import resolve


def bfloat16(values: np.ndarray) -> np.ndarray:
    """The high halves of float32 values, rounded to even: what bf16 stores."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def stored_bits(directory: Path, name: str) -> np.ndarray:
    """A bf16 tensor of a safetensors file as uint16."""
    import torch

    with safe_open(directory / "model.safetensors", framework="pt") as file:
        tensor = file.get_tensor(name)
    assert tensor.dtype == torch.bfloat16
    bits: np.ndarray = tensor.view(torch.uint16).numpy()
    return bits


def unpacked(reader: gguf.GGUFReader, name: str) -> np.ndarray:
    tensor = next(tensor for tensor in reader.tensors if tensor.name == name)
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


def interleaved_to_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp stores rotary pairs side by side, Hugging Face in two halves of a head."""
    rows = weight.reshape(heads, -1, 2, weight.shape[1])
    return rows.swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIOLET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.slow
def test_conversion_keeps_every_number(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "small.Q8_0.gguf"
    write_gguf(path)
    texts: list[str] = []
    facts = resolve(ModelConfig(str(path)), texts.append)

    assert facts.name == "small.Q8_0"
    assert facts.architecture == "LlamaForCausalLM"
    assert facts.context_len == CONTEXT
    assert facts.config["rms_norm_eps"] == EPSILON
    assert facts.eos_token_ids == (0, 2)
    assert facts.chat_template == "{{ messages[0].content }}"
    assert any(text.endswith("%") for text in texts)
    tokenizer = Tokenizer.from_file(str(facts.directory / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode("the end").ids) == "the end"

    reader = gguf.GGUFReader(path)
    for ours, theirs in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("lm_head.weight", "output.weight"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
        ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight"),
        ("model.layers.1.input_layernorm.weight", "blk.1.attn_norm.weight"),
    ):
        expected = bfloat16(unpacked(reader, theirs))
        assert np.array_equal(stored_bits(facts.directory, ours), expected), ours
    for projection, heads in (("q", HEADS), ("k", KV_HEADS)):
        weight = unpacked(reader, f"blk.1.attn_{projection}.weight")
        stored = stored_bits(facts.directory, f"model.layers.1.self_attn.{projection}_proj.weight")
        assert np.array_equal(stored, bfloat16(interleaved_to_halves(weight, heads)))

    texts.clear()
    assert resolve(ModelConfig(str(path)), texts.append) == facts
    assert texts == []  # nothing was done again
    assert sorted(entry.name for entry in cache.iterdir() if entry.is_dir()) == [
        facts.directory.name
    ]


@pytest.mark.slow
def test_architecture_that_cannot_be_converted(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "odd.gguf"
    write_gguf(path, architecture="nonesuch")
    with pytest.raises(ConfigError, match=r"cannot convert odd\.gguf, .*nonesuch") as caught:
        resolve(ModelConfig(str(path)))
    assert "\n" not in caught.value.message
    assert not [entry for entry in cache.iterdir() if entry.is_dir()]


@pytest.mark.slow
def test_gguf_file_that_is_cut_off(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "short.gguf"
    write_gguf(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ConfigError, match=r"cannot convert short\.gguf"):
        resolve(ModelConfig(str(path)))
    assert not [entry for entry in cache.iterdir() if entry.is_dir()]


@pytest.mark.slow
def test_demo_model_has_the_numbers_of_its_gguf_file() -> None:
    """Uses the user's own cache: the conversion takes 20 s."""
    need_demo("demo")
    (path,) = demo_parts("demo")
    facts = resolve(ModelConfig("demo"))
    assert facts.name == "demo"
    assert (facts.vocab_size, facts.context_len, facts.eos_token_ids) == (49152, 8192, (2,))
    assert facts.generation == {"temperature": 0.2, "top_p": 0.9}
    assert facts.chat_template is not None
    assert DEMOS["demo"].stem in facts.directory.name
    reader = gguf.GGUFReader(path)
    for ours, theirs in (
        ("model.norm.weight", "output_norm.weight"),
        ("model.layers.29.mlp.up_proj.weight", "blk.29.ffn_up.weight"),
        ("model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight"),
    ):
        expected = bfloat16(unpacked(reader, theirs))
        assert np.array_equal(stored_bits(facts.directory, ours), expected), ours


def test_magic_is_checked_first(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path)
    check_magic(path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid")
    with pytest.raises(ConfigError, match="git lfs pull"):
        check_magic(path)
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="is not a GGUF file"):
        check_magic(path)
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        check_magic(tmp_path / "missing")


def test_every_change_of_a_file_makes_a_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def note(name: str, *_: object) -> Path:
        names.append(name)
        return tmp_path

    monkeypatch.setattr("triolet.model_source.gguf.convert_once", note)
    path = tmp_path / "model.gguf"
    content = b"GGUF" + bytes(3 << 20)
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    converted_gguf(path, silent)
    converted_gguf(path, silent)
    path.write_bytes(content[:-1] + b"x")
    os.utime(path, ns=(1, 1))
    converted_gguf(path, silent)
    os.utime(path, ns=(2, 2))
    converted_gguf(path, silent)
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert all(name.startswith("model-gguf1-") for name in names)
