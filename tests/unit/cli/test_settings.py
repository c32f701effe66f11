import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from triolet.cli.main import run
from triolet.cli.settings import (
    GROUPS,
    Sources,
    read_settings,
    serve_runner,
    setting_names,
    stray_variables,
)
from triolet.config import RunnerConfig
from triolet.errors import ConfigError

Show = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    import os

    for name in [name for name in os.environ if name.startswith("TRIOLET_")]:
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.fixture
def show(clean: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Show:
    """Settings by `triolet config show --json`, flattened: name -> value and origin."""
    import json

    def call(*tokens: str) -> dict[str, dict[str, Any]]:
        assert run(["config", "show", "--json", *tokens]) == 0
        groups = json.loads(capsys.readouterr().out)
        return {name: row for rows in groups.values() for name, row in rows.items()}

    return call


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return path


def test_names_are_unique_over_all_groups() -> None:
    names = [field.name for group in GROUPS.values() for field in attrs.fields(group)]
    assert len(names) == len(set(names)) == len(setting_names())


@pytest.mark.slow
def test_every_setting_is_a_flag_and_a_variable_of_serve(
    clean: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clean.setenv("COLUMNS", "300")  # names are not broken over lines
    assert run(["serve", "--help"]) == 0
    words = set(re.findall(r"[\w-]+", capsys.readouterr().out))
    for name in setting_names():
        assert f"--{name.replace('_', '-')}" in words
        assert f"TRIOLET_{name.upper()}" in words


def test_defaults_without_anything(show: Show) -> None:
    shown = show()
    assert shown["port"] == {"value": 8000, "from": "default"}
    assert {row["from"] for row in shown.values()} == {"default"}


@pytest.mark.slow
def test_flag_beats_variable_beats_file_beats_default(
    show: Show, clean: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All eight ways to give one setting; the highest of those present wins."""
    path = toml(tmp_path, "port = 3")
    for flag, variable, file in itertools.product((True, False), repeat=3):
        clean.delenv("TRIOLET_PORT", raising=False)
        if variable:
            clean.setenv("TRIOLET_PORT", "2")
        tokens = [*(["--port", "1"] if flag else []), *(["--config", str(path)] if file else [])]
        expected = (
            {"value": 1, "from": "--port"}
            if flag
            else {"value": 2, "from": "TRIOLET_PORT"}
            if variable
            else {"value": 3, "from": str(path)}
            if file
            else {"value": 8000, "from": "default"}
        )
        assert show(*tokens)["port"] == expected


def test_every_kind_of_value_in_every_source(
    show: Show, clean: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = toml(
        tmp_path,
        """
        model = "from-file"
        api_keys = ["a", "b"]
        [runner]
        runner = "thread"
        batch_invariant = true
        logits_processors = {mine = "package.module:function"}
        [cache]
        kv_cache_fraction = 0.25
        """,
    )
    clean.setenv("TRIOLET_ENABLE_PREFIX_CACHING", "false")
    clean.setenv("TRIOLET_CORS_ALLOWED_ORIGINS", "https://a.example https://b.example")
    shown = show("--config", str(path), "--served-model-name", "x", "--served-model-name", "y")
    values = {name: row["value"] for name, row in shown.items()}
    assert values["model"] == "from-file"
    assert values["runner"] == "thread"
    assert values["batch_invariant"] is True
    assert values["logits_processors"] == {"mine": "package.module:function"}
    assert values["kv_cache_fraction"] == 0.25
    assert values["enable_prefix_caching"] is False
    assert values["cors_allowed_origins"] == ["https://a.example", "https://b.example"]
    assert values["served_model_name"] == ["x", "y"]


def test_model_is_an_argument_and_a_flag(show: Show) -> None:
    assert show("my-model")["model"]["value"] == "my-model"
    assert show("--model", "my-model")["model"]["value"] == "my-model"


def test_secrets_are_counted_not_shown(show: Show) -> None:
    assert show("--api-keys", "s3cret")["api_keys"]["value"] == "1 given"


def test_a_server_runs_its_worker_in_a_process_unless_told_otherwise(show: Show) -> None:
    assert show()["runner"]["value"] == "process"
    assert show("--runner", "thread")["runner"] == {"value": "thread", "from": "--runner"}
    assert serve_runner(RunnerConfig(threads=3), Sources(None)).threads == 3


def test_file_for_a_server_serves_other_commands_too(
    clean: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = toml(tmp_path, "port = 3\nmodel = 'tiny-random'")
    clean.setenv("TRIOLET_CACHE", str(tmp_path))
    assert run(["pull", "--config", str(path)]) == 0
    assert "tiny-random" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "no setting 'prot'; did you mean port"),
        ("[server]\nprot = 1", "no setting 'prot'; did you mean port"),
        ("[server]\nmax_num_seqs = 1", r"max_num_seqs belongs into the table \[scheduler\]"),
        ("port = 1.5", "port must be an integer, got 1.5"),
        ('max_num_seqs = "4"', "max_num_seqs must be an integer, got '4'"),
        ('batch_invariant = "yes"', "batch_invariant must be true or false, got 'yes'"),
        ('api_keys = "abc"', "api_keys must be a tuple"),
        ("logits_processors = {a = 1}", "logits_processors must be a table"),
        ("port = 1\n[server]\nport = 2", "sets port twice"),
        ("[other]\nport = 1", "no setting 'other'"),
        ("port = ", "is not valid TOML"),
    ],
)
def test_file_with_a_mistake_is_refused_with_its_name(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_settings(toml(tmp_path, text))
    assert str(tmp_path) in caught.value.message


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_file_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "settings.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"settings\.toml"):
        read_settings(path)


def test_variable_that_names_no_setting_is_pointed_out(clean: pytest.MonkeyPatch) -> None:
    clean.setenv("TRIOLET_CACHE", "/somewhere")
    clean.setenv("TRIOLET_PORT", "1")
    assert stray_variables() == []
    clean.setenv("TRIOLET_MAX_SEQS", "1")
    (sentence,) = stray_variables()
    assert sentence.startswith("TRIOLET_MAX_SEQS is ignored: triolet has no setting 'max_seqs'")
