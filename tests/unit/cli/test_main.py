import pytest

from triolet.cli import main as main_module
from triolet.cli.main import run
from triolet.errors import ConfigError, EngineDead


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["srve"], 'Unknown command "srve". Did you mean "serve"?'),
        (["config", "show", "--prot", "1"], 'Unknown option: "--prot". Did you mean "--port"?'),
        (["config", "show", "--port", "x"], 'Invalid value for "--port"'),
        (["config", "show", "--port", "70000"], "port must be in 0..65535"),
        (["config", "show", "--block-size", "17"], "block_size must be 8, 16, 32, 64 or 128"),
        (["config", "show", "--dtype", "int3"], 'Invalid value "int3" for "--dtype"'),
        (["config", "show", "--config", "/no/such.toml"], "cannot read the settings file"),
        (["config", "show", "a", "b"], "b"),
    ],
)
def test_mistake_is_one_line_and_exit_code_2(
    tokens: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tokens) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert lines[-1].startswith("triolet: ")
    assert message.replace('"', "") in lines[-1].replace('"', "")
    assert "Traceback" not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("wrong;\n  do right"), 2, "triolet: wrong; do right\n"),
        (EngineDead("it died"), 1, "triolet: it died\n"),
        (KeyboardInterrupt(), 130, ""),
        (ExceptionGroup("g", [ExceptionGroup("h", [ConfigError("w")])]), 2, "triolet: w\n"),
        (ExceptionGroup("g", [OSError(), EngineDead("it died")]), 1, "triolet: it died\n"),
        (BaseExceptionGroup("g", [KeyboardInterrupt()]), 130, ""),
    ],
)
def test_errors_of_a_command_become_exit_codes(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def meta(tokens: object) -> None:
        raise error

    monkeypatch.setattr(main_module.app, "_meta", meta)
    assert run([]) == code
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("bug", [ZeroDivisionError(), ExceptionGroup("g", [ZeroDivisionError()])])
def test_bug_keeps_its_traceback(bug: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def meta(tokens: object) -> None:
        raise bug

    monkeypatch.setattr(main_module.app, "_meta", meta)
    with pytest.raises(type(bug)):
        run([])


def test_help_names_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for name, (_, line) in main_module.COMMANDS.items():
        assert name in text
        assert line in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("triolet ")
