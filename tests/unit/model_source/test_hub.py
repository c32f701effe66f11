from pathlib import Path

import pytest

from support.hf_directory import write_model
from triolet.config import ModelConfig
from triolet.errors import ConfigError
from triolet.model_source.hub import is_hub_id
from triolet.model_source.resolve import resolve


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", True),
        ("gpt2", True),
        ("a/b.c_d-e", True),
        ("a/b/c", False),
        ("./a", False),
        ("~/a", False),
        ("a/", False),
        ("/a", False),
        ("a/..", False),
        ("a--b/c", False),
        ("a b", False),
        ("", False),
    ],
)
def test_form_of_a_hub_id(name: str, expected: bool) -> None:
    assert is_hub_id(name) is expected


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, with the network switched off."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "hf/hub"


def put_snapshot(hub_cache: Path, owner: str, name: str, revision: str) -> Path:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = hub_cache / f"models--{owner}--{name}"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / revision).write_text(commit)
    return write_model(repo / "snapshots" / commit)


@pytest.mark.slow
def test_cached_model_is_served_offline(hub_cache: Path) -> None:
    directory = put_snapshot(hub_cache, "owner", "name", "main")
    texts: list[str] = []
    facts = resolve(ModelConfig("owner/name"), texts.append)
    assert facts.name == "owner/name"
    assert facts.directory == directory.resolve()
    assert texts[0].startswith("fetching owner/name")


@pytest.mark.slow
def test_revision_is_honoured(hub_cache: Path) -> None:
    put_snapshot(hub_cache, "owner", "name", "v2")
    assert resolve(ModelConfig("owner/name", revision="v2")).name == "owner/name"
    with pytest.raises(ConfigError, match="'owner/name' is neither a file nor a directory here"):
        resolve(ModelConfig("owner/name"))


@pytest.mark.slow
def test_offline_and_not_cached_says_both(hub_cache: Path) -> None:
    with pytest.raises(ConfigError, match=r"HF_HUB_OFFLINE is set\); fetch it first"):
        resolve(ModelConfig("owner/missing"))


@pytest.mark.slow
def test_broken_snapshot_is_refused_like_any_directory(hub_cache: Path) -> None:
    (put_snapshot(hub_cache, "owner", "name", "main") / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ConfigError, match="is broken"):
        resolve(ModelConfig("owner/name"))
