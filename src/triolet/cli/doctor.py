"""`triolet doctor`: what is installed, what the machine offers, and whether they fit."""

from __future__ import annotations

import json
from typing import Annotated

import attrs
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from triolet.cli.checkup import CHECKS, Finding, State

MARKS = {State.GOOD: ("ok", "green"), State.WARNING: ("!!", "yellow"), State.BAD: ("XX", "red")}


def doctor(
    *,
    as_json: Annotated[
        bool, Parameter(name="--json", negative="", help="Print JSON instead of lines.")
    ] = False,
) -> int:
    """Check the installation and the machine; exit code 1 if something cannot work."""
    findings = [finding for check in CHECKS for finding in check()]
    if as_json:
        print(json.dumps([attrs.asdict(finding) for finding in findings], indent=2))
    else:
        console = Console(highlight=False, soft_wrap=True)
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            console.print(_line(finding, width))
    return 1 if any(finding.state is State.BAD for finding in findings) else 0


def _line(finding: Finding, width: int) -> Text:
    mark, style = MARKS[finding.state]
    line = Text.assemble((mark, style), f"  {finding.name:{width}}  {finding.text}")
    if finding.advice:
        line.append(f"\n{'':{width + 6}}{finding.advice}", style=style)
    return line
