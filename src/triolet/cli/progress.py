"""Progress texts of the start on a terminal (one line with a bar) or in a file (few lines)."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

PERCENT = re.compile(r"(.*?)\s*\b(\d{1,3})%")
COUNT = re.compile(r"(.*?)\s*\b(\d+) of (\d+)")
"""A text that ends in "NN%" or in "N of M" has a bar (`triolet.model_source.progress`)."""

STEP_PERCENT = 10
"""Without a terminal a bar is a line at most this often."""


def split_percent(text: str) -> tuple[str, int | None]:
    """A progress text without how far it is, and that in percent."""
    if match := PERCENT.fullmatch(text):
        return match[1], min(100, int(match[2]))
    if (match := COUNT.fullmatch(text)) and int(match[3]) > 0:
        return match[1], min(100, 100 * int(match[2]) // int(match[3]))
    return text, None


class StartProgress:
    """Shows what the start is doing, from any thread. Use it with `with`.

    Args:
        console: Where to; standard error in the commands, so that output can be piped.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[percent]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=None, percent="")
        self._last: tuple[str, int] | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the line off the screen. Idempotent."""
        self._bar.stop()

    def __call__(self, text: str) -> None:
        """Show a text: the `progress` of `open_engine` and of `resolve`."""
        what, percent = split_percent(text)
        if not self._bar.disable:
            self._bar.update(
                self._task,
                description=what,
                total=None if percent is None else 100,
                completed=percent or 0,
                percent="" if percent is None else f"{percent}%",
            )
            return
        step = (what, (percent or 0) // STEP_PERCENT)
        if step != self._last:
            self._last = step
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
