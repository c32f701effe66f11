"""A GGUF file -> a directory of bf16 safetensors in the cache, converted once.

The quantized weights are unpacked: triolet's kernels quantize at load in their own layout
(`quantization`), and transformers' packed GGUF layers give about one token per second on CPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from triolet.errors import ConfigError
from triolet.model_source.helper import run_helper
from triolet.model_source.json_file import GIT_LFS_POINTER, lfs_pointer
from triolet.model_source.progress import Progress
from triolet.model_source.store import stored_directory

CONVERTER_VERSION = 1
"""Part of the name of each converted directory: raise it when the converter changes."""
MAGIC = b"GGUF"
SAMPLE_BYTES = 1 << 20


def converted_gguf(path: Path, progress: Progress) -> Path:
    """The directory converted from a GGUF file; converts it if that was not done yet.

    Raises:
        ConfigError: It is not a GGUF file, or of an architecture that cannot be converted.
    """
    check_magic(path)
    name = stored_name(path.stem, _fingerprint(path))
    return convert_once(name, path.stem, lambda scratch: path, {}, progress)


def convert_once(
    name: str,
    what: str,
    provide: Callable[[Path], Path],
    generation: Mapping[str, Any],
    progress: Progress,
) -> Path:
    """The cached directory `name`; if it is not there, convert the file that `provide` gives.

    Args:
        name: From `stored_name`.
        what: The model's name for people.
        provide: Gives the GGUF file; may make it in the empty directory it is passed.
        generation: Sampling defaults to add to generation_config.json.
        progress: See `Progress`.
    """

    def build(scratch: Path) -> None:
        source = provide(scratch)
        run_helper(
            "triolet.model_source.convert_gguf",
            {"source": str(source), "target": str(scratch), "generation": dict(generation)},
            lambda text: progress(f"converting {what} (once): {text}"),
        )
        if source.parent == scratch:
            source.unlink()

    return stored_directory(name, what, build, progress)


def stored_name(stem: str, fingerprint: str) -> str:
    """Name of the converted directory in the cache."""
    return f"{stem}-gguf{CONVERTER_VERSION}-{fingerprint[:16]}"


def check_magic(path: Path) -> None:
    """Raise ConfigError unless the file begins as a GGUF file does."""
    try:
        with path.open("rb") as file:
            head = file.read(len(GIT_LFS_POINTER))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", param="model") from error
    if head == GIT_LFS_POINTER:
        raise lfs_pointer(path)
    if not head.startswith(MAGIC):
        raise ConfigError(f"{path} is not a GGUF file; fetch it again", param="model")


def _fingerprint(path: Path) -> str:
    """Hash of size, time and both ends: reading the whole of a big file takes too long."""
    stat = path.stat()
    digest = hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns} ".encode())
    with path.open("rb") as file:
        digest.update(file.read(SAMPLE_BYTES))
        file.seek(max(0, stat.st_size - SAMPLE_BYTES))
        digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
