"""The operator's words for a model -> `ModelFacts`."""

from __future__ import annotations

from pathlib import Path

import attrs

from triolet.config import ModelConfig
from triolet.errors import ConfigError
from triolet.model_source.demo import DEMOS, demo_directory
from triolet.model_source.describe import describe
from triolet.model_source.facts import ModelFacts
from triolet.model_source.gguf import converted_gguf
from triolet.model_source.hub import is_hub_id, snapshot_directory
from triolet.model_source.progress import Progress, silent
from triolet.model_source.tiny_random import is_tiny_random, tiny_random_directory


def resolve(model: ModelConfig, progress: Progress = silent) -> ModelFacts:
    """Find a model, fetch or convert it if need be, and describe it. Blocks; loads no torch.

    What a name means is decided in this order: a demo or tiny-random model, a directory, a
    GGUF file, a hub id.

    Args:
        model: Which model, and settings that change what is known of it.
        progress: Told what is going on; an exception it raises stops the work (`Progress`).

    Raises:
        ConfigError: There is no such model, or it is broken or of a kind that is not served.
    """
    name = model.model
    if not name:
        raise ConfigError("model must not be empty", param="model")
    path = Path(name).expanduser()
    if model.revision is not None and (path.exists() or name in DEMOS or is_tiny_random(name)):
        raise ConfigError(
            f"revision is for hub models only, and {name!r} is not one", param="revision"
        )
    if is_tiny_random(name):
        directory = tiny_random_directory(name, progress)
        facts = describe(directory, name=name, model=model, random_seed=model.load_seed)
    elif name in DEMOS:
        facts = describe(demo_directory(name, progress), name=name, model=model)
    elif path.is_dir():
        directory = path.resolve()
        facts = describe(directory, name=directory.name, model=model)
    elif path.is_file():
        facts = describe(converted_gguf(path.resolve(), progress), name=path.stem, model=model)
    elif is_hub_id(name) and path.suffix != ".gguf":
        directory = snapshot_directory(name, model.revision, progress)
        facts = describe(directory, name=name, model=model)
    else:
        raise ConfigError(
            f"there is no file or directory {name!r}, and it is not the form of a hub id",
            param="model",
        )
    return attrs.evolve(facts, directory=facts.directory.resolve())
