import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from triolet.errors import ConfigError, InternalError
from triolet.model_source.helper import run_helper
from triolet.model_source.progress import silent

PROGRAM = "support.helper_program"


@pytest.fixture(autouse=True)
def _importable_by_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


class Enough(Exception):
    """Raised by a progress callback, as trio's Cancelled would be."""


def process_is_gone(pid: int) -> bool:
    """Whether it ends within ten seconds; an orphan may stay a zombie of a lazy init."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
    return False


@pytest.mark.slow
def test_result_and_progress_of_a_child() -> None:
    seen: list[str] = []
    assert run_helper(PROGRAM, {"do": "answer", "value": "é\n"}, seen.append) == {"echo": "é\n"}
    assert "half 50%" in seen


@pytest.mark.slow
def test_what_libraries_print_does_not_disturb_the_answer() -> None:
    assert run_helper(PROGRAM, {"do": "print"}, silent) == {"echo": "clean"}


@pytest.mark.slow
def test_refusal_of_a_child_is_the_operators_error() -> None:
    with pytest.raises(ConfigError, match=r"^no such thing; take another$"):
        run_helper(PROGRAM, {"do": "refuse"}, silent)


@pytest.mark.slow
def test_crash_of_a_child_tells_its_last_words() -> None:
    with pytest.raises(InternalError, match=r"exit code 1 .*ZeroDivisionError: a bug of ours"):
        run_helper(PROGRAM, {"do": "crash"}, silent)


@pytest.mark.slow
def test_child_that_only_exits_is_no_result() -> None:
    with pytest.raises(InternalError, match="exit code 3 and no answer"):
        run_helper(PROGRAM, {"do": "exit"}, silent)


@pytest.mark.slow
def test_killed_child_is_taken_for_lack_of_memory() -> None:
    with pytest.raises(ConfigError, match="lack of memory"):
        run_helper(PROGRAM, {"do": "killed"}, silent)


@pytest.mark.slow
def test_missing_program_is_an_error_not_a_hang() -> None:
    with pytest.raises(InternalError, match="No module named"):
        run_helper("support.no_such_program", {}, silent)


@pytest.mark.slow
def test_exception_in_progress_kills_the_child() -> None:
    pids: list[int] = []

    def progress(text: str) -> None:
        if pids:  # a heartbeat: the child itself says nothing more
            raise Enough
        if text.isdecimal():
            pids.append(int(text))

    with pytest.raises(Enough):
        run_helper(PROGRAM, {"do": "hang"}, progress)
    assert process_is_gone(pids[0])


@pytest.mark.slow
def test_child_dies_with_its_parent() -> None:
    code = (
        "from triolet.model_source.helper import run_helper\n"
        f"run_helper({PROGRAM!r}, {{'do': 'hang'}}, lambda text: print(text, flush=True))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = next(int(line) for line in parent.stdout if line.strip().isdecimal())
        os.kill(parent.pid, signal.SIGKILL)
    assert process_is_gone(pid)
