"""The pages about the command line say what the program does."""

import re
from pathlib import Path

from support.reference_docs import PAGE, page
from triolet.cli.main import COMMANDS
from triolet.model_source.demo import DEMOS
from triolet.model_source.tiny_random import FAMILIES

ROOT = Path(__file__).parents[3]
CLI_PAGE = (ROOT / "docs/reference/cli.md").read_text()


def test_configuration_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run: python tests/support/reference_docs.py"


def test_every_command_has_a_section() -> None:
    assert set(re.findall(r"^## triolet (\w+)$", CLI_PAGE, re.MULTILINE)) == set(COMMANDS)


def test_every_model_with_a_name_is_listed() -> None:
    for name in (*DEMOS, ", ".join(FAMILIES)):
        assert name in CLI_PAGE
