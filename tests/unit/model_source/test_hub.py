from collections.abc import Iterator
from pathlib import Path

import pytest

from support import fake_hub
from support.hf_directory import write_model
from triolet.config import ModelConfig
from triolet.errors import ConfigError
from triolet.model_source import download
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


@pytest.fixture
def hub(
    hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[fake_hub.FakeHub]:
    """A hub on loopback with one small model and files that nobody should want."""
    model = write_model(tmp_path / "published")
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    unwanted = ("pytorch_model.bin", "modeling_custom.py", "consolidated.safetensors", "README.md")
    with fake_hub.serve_hub({**files, **dict.fromkeys(unwanted, b"unwanted")}) as hub:
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub


@pytest.mark.slow
def test_model_is_downloaded_once_without_pickles_and_code(hub: fake_hub.FakeHub) -> None:
    facts = resolve(ModelConfig("owner/name"))
    assert facts.name == "owner/name"
    assert facts.directory.name == fake_hub.COMMIT
    assert sorted(hub.fetched) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert resolve(ModelConfig("owner/name")) == facts
    assert len(hub.fetched) == 3


@pytest.mark.slow
def test_download_that_cannot_be_is_one_sentence(hub: fake_hub.FakeHub) -> None:
    for model, revision, message in (
        ("owner/missing", None, "no file, directory or hub model 'owner/missing'.*HF_TOKEN"),
        ("owner/gated", None, "owner/gated is gated: accept its terms"),
        ("owner/name", "v9", "owner/name has no revision 'v9'"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve(ModelConfig(model, revision=revision))
    assert hub.fetched == []


def test_progress_of_a_download_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "REPORT_INTERVAL_S", 0)
    texts: list[str] = []
    bar = download.bar_class(texts.append)(total=30_000_000, unit="B", disable=None)
    bar.update(12_000_000)
    bar.update(18_000_000)
    files = download.bar_class(texts.append)(total=3, unit="it")  # the bar that counts files
    files.update()
    assert texts == ["12 of 30 MB 40%", "30 of 30 MB 100%"]
    for each in (bar, files):
        each.close()
