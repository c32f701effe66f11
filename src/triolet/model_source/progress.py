"""How long work tells what it is doing."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
"""Told what is going on, in a few words; a text that ends in "NN%" or "N of M" can be shown
as a bar.

Long work calls it at least `HEARTBEAT_S` apart, also when nothing changed, and an exception
it raises ends the work at once: so a caller in a worker thread can be cancelled there.
"""

HEARTBEAT_S = 0.2


def silent(text: str) -> None:
    """A `Progress` that shows nothing."""
