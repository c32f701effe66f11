import subprocess
import sys
from pathlib import Path

import pytest

from support.hf_directory import write_model
from triolet.config import ModelConfig
from triolet.errors import ConfigError
from triolet.model_source.resolve import resolve


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_CACHE", str(tmp_path / "cache"))


def test_directory_is_named_after_itself(tmp_path: Path) -> None:
    write_model(tmp_path / "my-model")
    facts = resolve(ModelConfig(f"{tmp_path}/my-model/"))
    assert facts.name == "my-model"
    assert facts.directory == tmp_path / "my-model"


def test_relative_directory_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    assert resolve(ModelConfig("my-model")).directory == tmp_path / "my-model"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve(ModelConfig("~/my-model")).name == "my-model"


def test_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGML and so on")
    with pytest.raises(ConfigError, match=r"model.gguf is not a GGUF file"):
        resolve(ModelConfig(str(tmp_path / "model.gguf")))


@pytest.mark.parametrize("name", ["./missing", "/no/such/model", "a/b/c", "missing.gguf", "a b"])
def test_path_that_is_not_there_is_not_looked_up_on_the_hub(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no file or directory"):
        resolve(ModelConfig(name))


def test_empty_name() -> None:
    with pytest.raises(ConfigError, match="must not be empty"):
        resolve(ModelConfig(""))


def test_revision_belongs_to_hub_models(tmp_path: Path) -> None:
    write_model(tmp_path)
    for name in (str(tmp_path), "demo", "tiny-random"):
        with pytest.raises(ConfigError, match="revision is for hub models only"):
            resolve(ModelConfig(name, revision="main"))


@pytest.mark.slow
def test_resolving_loads_neither_torch_nor_trio(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from triolet.config import ModelConfig\n"
        "from triolet.model_source.resolve import resolve\n"
        "resolve(ModelConfig('tiny-random'))\n"
        "sys.exit(str(bad) if (bad := {'torch', 'trio', 'transformers'} & set(sys.modules)) else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
