"""Reading the small JSON files of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import orjson

from triolet.errors import ConfigError

GIT_LFS_POINTER = b"version https://git-lfs"


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ConfigError: The file is missing, unreadable, or something else.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", param="model") from error
    if content.startswith(GIT_LFS_POINTER):
        raise lfs_pointer(path)
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ConfigError(
            f"{path} is not valid JSON ({error}); fetch the model again", param="model"
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object; fetch the model again", param="model")
    return cast("dict[str, Any]", value)


def lfs_pointer(path: Path) -> ConfigError:
    """The error for a file of which git left only the pointer."""
    return ConfigError(
        f"{path} is a git-lfs pointer, not the file itself; run `git lfs pull` in its directory",
        param="model",
    )
