"""The table of conformance names tests that exist, and says something in every row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/reference/conformance.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| behaviour", "| field", "| situation"))
]


def names_in(path: Path) -> set[str]:
    """Tests of a file; those of a class as "Class::test"."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        for item in inside:
            if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.add(owner + item.name)
    return found


def test_every_named_test_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::([\w:]+)`", PAGE)
    assert len(named) > 90
    for path, name in named:
        assert name in names_in(TESTS / path), f"{path}::{name}"


def test_every_row_has_a_test_or_says_that_it_is_not_built() -> None:
    assert len(ROWS) > 90
    for row in ROWS:
        assert len(row) == 3, row
        _, here, test = row
        assert "::" in test or here.startswith("not built"), row
