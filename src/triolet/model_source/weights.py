"""Whether the weights of a directory are all there, judged by headers and sizes.

Only safetensors are accepted: a pickle can run code when it is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from triolet.errors import ConfigError
from triolet.model_source.json_file import GIT_LFS_POINTER, lfs_pointer, read_json_object

INDEX = "model.safetensors.index.json"
HEADER_BYTES_MAX = 100_000_000
"""The limit of the safetensors format itself (safetensors/src/tensor.rs)."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def check_weights(directory: Path) -> tuple[Path, ...]:
    """The safetensors files of a model, each of them whole.

    Raises:
        ConfigError: There are none, a shard is missing, or a file is cut off.
    """
    if (directory / INDEX).is_file():
        files = _shards(directory)
    else:
        files = tuple(sorted(directory.glob("*.safetensors")))
        if len(files) > 1 and directory / "model.safetensors" in files:
            files = (directory / "model.safetensors",)
    if not files:
        raise _no_weights(directory)
    if len(files) > 1 and not (directory / INDEX).is_file():
        raise ConfigError(
            f"{directory} has {len(files)} safetensors files but no {INDEX} that says which "
            "tensor is where; fetch the model again",
            param="model",
        )
    for path in files:
        _check_safetensors(path)
    return files


def _shards(directory: Path) -> tuple[Path, ...]:
    weight_map: Any = read_json_object(directory / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{directory / INDEX} has no weight_map", param="model")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name:
            raise ConfigError(
                f"{directory / INDEX} names {name!r}, which is outside the model's directory",
                param="model",
            )
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ConfigError(
            f"{directory} lacks {missing[0]}{more} of {len(names)} weight files; "
            "fetch the model again",
            param="model",
        )
    return tuple(directory / name for name in names)


def _no_weights(directory: Path) -> ConfigError:
    if any(path for pattern in PICKLES for path in directory.glob(pattern)):
        return ConfigError(
            f"{directory} has its weights as pickles only, which can run code and are not "
            "loaded; convert them once with transformers: "
            "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR)",
            param="model",
        )
    if any(directory.glob("*.gguf")):
        return ConfigError(
            f"{directory} holds GGUF files; name the one to serve instead of the directory",
            param="model",
        )
    return ConfigError(f"{directory} has no weights: no *.safetensors file", param="model")


def _check_safetensors(path: Path) -> None:
    """Compare the size of a file with what its header promises."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        if prefix == GIT_LFS_POINTER[:8]:
            raise lfs_pointer(path)
        if len(prefix) < 8 or length > min(HEADER_BYTES_MAX, size - 8):
            raise _broken(path, "its header is cut off")
        try:
            header: Any = orjson.loads(file.read(length))
        except orjson.JSONDecodeError as error:
            raise _broken(path, "its header is not JSON") from error
    try:
        ends = [e["data_offsets"][1] for name, e in header.items() if name != "__metadata__"]
        promised = 8 + length + max(ends, default=0)
    except (AttributeError, KeyError, IndexError, TypeError) as error:
        raise _broken(path, "its header is not that of a safetensors file") from error
    if promised != size:
        raise _broken(path, f"it has {size} bytes where {promised} are promised")


def _broken(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} is broken: {why}; fetch the model again", param="model")
