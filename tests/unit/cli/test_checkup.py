import json
import socket
from pathlib import Path

import attrs
import pytest

from triolet.cli import checkup, doctor as doctor_module
from triolet.cli.checkup import Finding, State
from triolet.cli.main import run
from triolet.config import ServerConfig
from triolet.model_source.demo import DEMOS

CPU: dict[str, object] = {"version": "2.13.0+cpu", "cuda_build": None, "devices": []}
CUDA = {"version": "2.13.0", "cuda_build": "13.0", "devices": ["H200"]}
CUDA_WITHOUT_GPU = {**CUDA, "devices": []}


@pytest.mark.parametrize(
    ("found", "has_device", "state", "text"),
    [
        (CPU, False, State.GOOD, "2.13.0+cpu, CPU build"),
        (CPU, True, State.WARNING, "a CUDA build would use it"),
        (CUDA, True, State.GOOD, "CUDA 13.0 build; H200"),
        (CUDA_WITHOUT_GPU, False, State.WARNING, "a CPU build is gigabytes smaller"),
        (CUDA_WITHOUT_GPU, True, State.WARNING, "driver may be too old"),
    ],
)
def test_torch_build_is_compared_with_the_machine(
    found: dict[str, object], has_device: bool, state: State, text: str
) -> None:
    finding = checkup.torch_finding(found, has_nvidia_device=has_device)
    assert finding.state is state
    assert text in f"{finding.text} {finding.advice}"


def test_kernels() -> None:
    some = checkup.kernels_finding({"native": {"float32": None, "bfloat16": "no avx512"}})
    assert some.state is State.GOOD
    assert "native for float32" in some.text
    none = checkup.kernels_finding({"native": {"float32": "not built", "bfloat16": "not built"}})
    assert none.state is State.WARNING
    assert "not built" in none.text


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRIOLET_CACHE", str(tmp_path / "file/cache"))
    (finding,) = checkup.check_cache()
    assert finding.state is State.BAD
    assert "TRIOLET_CACHE" in finding.advice
    monkeypatch.setenv("TRIOLET_CACHE", str(tmp_path / "not/yet/there"))
    (finding,) = checkup.check_cache()
    assert finding.state is State.GOOD
    assert not (tmp_path / "not").exists()  # a doctor only looks


def test_demo_model_missing_installed_or_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOLET_CACHE", str(tmp_path))
    demo = attrs.evolve(DEMOS["demo"], packages=("no-such-package",), stem="m", sha256="f" * 64)
    monkeypatch.setitem(DEMOS, "demo", demo)
    (finding,) = checkup.check_demo()
    assert finding.state is State.WARNING
    assert finding.advice.startswith("run `triolet pull demo`")
    (tmp_path / f"m-gguf1-{'f' * 16}").mkdir()
    (finding,) = checkup.check_demo()
    assert finding.state is State.GOOD
    assert "ready in" in finding.text


def test_port_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = ServerConfig(port=taken.getsockname()[1])
        monkeypatch.setattr(checkup, "ServerConfig", lambda: server)
        (finding,) = checkup.check_port()
        assert finding.state is State.WARNING
    (finding,) = checkup.check_port()
    assert finding.state is State.GOOD


def test_machine_and_versions_are_found() -> None:
    names = {finding.name for finding in [*checkup.check_machine(), *checkup.check_versions()]}
    assert {"cpu", "cores", "memory", "python", "triolet", "packages"} <= names


@pytest.mark.parametrize(("state", "code"), [(State.GOOD, 0), (State.WARNING, 0), (State.BAD, 1)])
def test_only_what_cannot_work_fails(
    state: State, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding("thing", "its [state]", state, "do this")
    monkeypatch.setattr(doctor_module, "CHECKS", (lambda: [finding],))
    assert run(["doctor"]) == code
    text = capsys.readouterr().out
    assert "thing  its [state]" in text
    assert "do this" in text
    assert run(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == [
        {"name": "thing", "text": "its [state]", "state": state, "advice": "do this"}
    ]
