from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from support.hf_directory import write_json, write_weights
from triolet.errors import ConfigError
from triolet.model_source.weights import INDEX, check_weights

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def write_shards(directory: Path) -> None:
    for tensor, shard in zip("ab", SHARDS, strict=True):
        write_weights(directory / shard, tensor)
    write_json(directory / INDEX, {"weight_map": dict(zip("ab", SHARDS, strict=True))})


def test_single_file(tmp_path: Path) -> None:
    write_weights(tmp_path / "model.safetensors", "a", "b")
    assert check_weights(tmp_path) == (tmp_path / "model.safetensors",)


def test_single_file_of_another_name(tmp_path: Path) -> None:
    write_weights(tmp_path / "weights.safetensors", "a")
    assert check_weights(tmp_path) == (tmp_path / "weights.safetensors",)


def test_shards(tmp_path: Path) -> None:
    write_shards(tmp_path)
    assert [path.name for path in check_weights(tmp_path)] == list(SHARDS)


def test_second_layout_of_the_same_weights_is_left_alone(tmp_path: Path) -> None:
    write_weights(tmp_path / "model.safetensors", "a")
    (tmp_path / "consolidated.safetensors").write_bytes(b"not looked at")
    assert check_weights(tmp_path) == (tmp_path / "model.safetensors",)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / SHARDS[1]).unlink()
    with pytest.raises(ConfigError, match=f"lacks {SHARDS[1]} of 2 weight files"):
        check_weights(tmp_path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "sub/model.safetensors"])
def test_index_cannot_lead_out_of_the_directory(tmp_path: Path, name: str) -> None:
    write_shards(tmp_path)
    write_json(tmp_path / INDEX, {"weight_map": {"a": name}})
    with pytest.raises(ConfigError, match="outside the model's directory"):
        check_weights(tmp_path)


def test_several_files_need_an_index(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / INDEX).unlink()
    with pytest.raises(ConfigError, match=f"no {INDEX}"):
        check_weights(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pytorch_model.bin", "pickles only"),
        ("model.Q4_K_M.gguf", "holds GGUF files"),
        ("README.md", r"no \*.safetensors file"),
    ],
)
def test_other_files_are_no_weights(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(b"content")
    with pytest.raises(ConfigError, match=message):
        check_weights(tmp_path)


def test_git_lfs_pointer(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ConfigError, match="git lfs pull"):
        check_weights(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(share=st.floats(0, 1, exclude_max=True))
def test_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "model.safetensors"
    write_weights(path, "a", "b")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ConfigError, match=r"is broken: .*; fetch the model again"):
        check_weights(tmp_path)


@pytest.mark.parametrize(
    "header", [b"{]", b"[]", b'{"a": {}}', b'{"a": {"data_offsets": [0, "x"]}}']
)
def test_nonsense_in_the_header_is_refused(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ConfigError, match="its header is not"):
        check_weights(tmp_path)


def test_bytes_behind_the_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_weights(path, "a")
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ConfigError, match="are promised"):
        check_weights(tmp_path)
