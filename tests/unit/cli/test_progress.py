import io

import pytest
from rich.console import Console

from triolet.cli.progress import StartProgress, split_percent


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("loading", ("loading", None)),
        ("unpacking the weights 42%", ("unpacking the weights", 42)),
        ("12 of 30 MB 40%", ("12 of 30 MB", 40)),
        ("loading layer 3 of 30", ("loading layer", 10)),
        ("layer 0 of 0", ("layer 0 of 0", None)),
        ("at 999%", ("at", 100)),
        ("100% sure", ("100% sure", None)),
    ],
)
def test_split_percent(text: str, expected: tuple[str, int | None]) -> None:
    assert split_percent(text) == expected


def test_file_gets_a_line_per_tenth() -> None:
    out = io.StringIO()
    with StartProgress(Console(file=out)) as progress:
        progress("starting")
        progress("starting")
        for percent in range(101):
            progress(f"unpacking [red] {percent}%")
        progress("done")
    lines = out.getvalue().splitlines()
    tenths = [f"unpacking [red] {percent}%" for percent in range(0, 101, 10)]
    assert lines == ["starting", *tenths, "done"]


def test_terminal_gets_one_line_that_disappears() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80)
    with StartProgress(console) as progress:
        progress("unpacking 42%")
        progress.stop()
        progress.stop()
        console.print("ready")
    assert "unpacking" in out.getvalue()
    assert out.getvalue().endswith("ready\n")
    assert "\x1b[2K" in out.getvalue()  # erased
