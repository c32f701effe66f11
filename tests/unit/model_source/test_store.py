import threading
from pathlib import Path

import pytest
from filelock import FileLock

from triolet.errors import ConfigError
from triolet.model_source.progress import silent
from triolet.model_source.store import stored_directory


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIOLET_CACHE", str(tmp_path / "deep/cache"))
    return tmp_path / "deep/cache"


def fill(directory: Path) -> None:
    (directory / "file").write_text("content")


def test_built_once_and_kept(cache: Path) -> None:
    built: list[Path] = []

    def build(directory: Path) -> None:
        built.append(directory)
        fill(directory)

    first = stored_directory("name", "it", build, silent)
    assert stored_directory("name", "it", build, silent) == first == cache / "name"
    assert (first / "file").read_text() == "content"
    assert len(built) == 1


def test_failed_build_leaves_nothing_and_can_be_repeated(cache: Path) -> None:
    def fail(directory: Path) -> None:
        fill(directory)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stored_directory("name", "it", fail, silent)
    assert [path.name for path in cache.iterdir()] == [".name.lock"]
    stored_directory("name", "it", fill, silent)


def test_remains_of_a_killed_build_are_removed(cache: Path) -> None:
    (cache / ".name.partial").mkdir(parents=True)
    (cache / ".name.partial/half").write_text("")
    directory = stored_directory("name", "it", fill, silent)
    assert [path.name for path in directory.iterdir()] == ["file"]


def test_two_builders_build_once() -> None:
    entered, go_on = threading.Event(), threading.Event()
    waiting: list[str] = []
    built: list[str] = []

    def slow_build(directory: Path) -> None:
        built.append("first")
        entered.set()
        assert go_on.wait(10)
        fill(directory)

    def second_progress(text: str) -> None:
        waiting.append(text)
        go_on.set()

    first = threading.Thread(target=stored_directory, args=("name", "it", slow_build, silent))
    first.start()
    assert entered.wait(10)
    stored_directory("name", "it", lambda path: built.append("second"), second_progress)
    first.join()
    assert built == ["first"]
    assert waiting[0] == "waiting for another process that prepares it"


def test_waiting_can_be_ended_by_progress(cache: Path) -> None:
    cache.mkdir(parents=True)

    def stop(text: str) -> None:
        raise ZeroDivisionError

    with FileLock(cache / ".name.lock"), pytest.raises(ZeroDivisionError):
        stored_directory("name", "it", fill, stop)


def test_unusable_cache_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRIOLET_CACHE", str(tmp_path / "file/cache"))
    with pytest.raises(ConfigError, match=r"cannot write .*/file.*; set TRIOLET_CACHE"):
        stored_directory("name", "it", fill, silent)
