"""The programs of docs/how_to/connect-a-client.md run as they stand, against a fake engine."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
import trio

from support.live_server import live_server

PAGE = Path(__file__).parents[2] / "docs/how_to/connect-a-client.md"


def blocks(language: str) -> list[str]:
    pattern = rf"^```{language}\n(.*?)^```$"
    return re.findall(pattern, PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.e2e
async def test_programs_run() -> None:
    programs = blocks("python")
    assert len(programs) == 2
    async with live_server() as server:
        for code in programs:
            program = code.replace("http://127.0.0.1:8000", server.url).replace(
                "MODEL", "fake-model"
            )
            await trio.run_process([sys.executable, "-W", "error", "-c", program])
        assert [request.state for request in server.engine.requests] == ["finished"] * 2


def test_settings_of_codex_are_toml() -> None:
    (text,) = blocks("toml")
    assert tomllib.loads(text)["model_providers"]["triolet"]["wire_api"] == "responses"


def test_page_links_are_files() -> None:
    for page in (PAGE, PAGE.parents[1] / "reference/http-api.md"):
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), link
