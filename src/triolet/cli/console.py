"""Where the commands talk to people: standard error; standard output is for results."""

from __future__ import annotations

from rich.console import Console


def error_console() -> Console:
    """A console on standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)
