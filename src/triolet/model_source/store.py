"""Directories that are made once and kept in the cache directory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from triolet.config import cache_directory
from triolet.errors import ConfigError
from triolet.model_source.progress import HEARTBEAT_S, Progress


def stored_directory(
    name: str, what: str, build: Callable[[Path], None], progress: Progress
) -> Path:
    """The directory `name` of the cache, built now if it is not there.

    Two processes build once: the second waits for the first. A directory lands by a rename,
    so one that is there is whole; what an interrupted build left behind is removed.

    Args:
        name: Names the content, version and all: a directory of that name is never rebuilt.
        what: What is built, for the text shown while another process builds it.
        build: Fills an empty directory.
        progress: Called while waiting.

    Raises:
        ConfigError: The cache directory cannot be written.
    """
    final = cache_directory() / name
    if final.is_dir():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(final.with_name(f".{name}.lock"))
        _acquire(lock, what, progress)
        try:
            if not final.is_dir():
                _build_in_place(final, build)
        finally:
            lock.release()
    except OSError as error:
        raise ConfigError(
            f"cannot write {error.filename or final}: {error.strerror or error}; "
            "set TRIOLET_CACHE to a directory with room",
            param="model",
        ) from error
    return final


def _acquire(lock: FileLock, what: str, progress: Progress) -> None:
    while True:  # bounded by the other process: the system frees its lock when it dies
        try:
            lock.acquire(timeout=HEARTBEAT_S)
        except Timeout:
            progress(f"waiting for another process that prepares {what}")
        else:
            return


def _build_in_place(final: Path, build: Callable[[Path], None]) -> None:
    scratch = final.with_name(f".{final.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)  # of a build that was killed: we hold the lock
    scratch.mkdir()
    try:
        build(scratch)
        scratch.rename(final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
