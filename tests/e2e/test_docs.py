"""The Python in README and tutorial runs as it stands, on a tiny model instead of the demo."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import trio

from triolet.cli.settings import read_settings
from triolet.config import EngineConfig, ServerConfig
from triolet.server.serve import serve

ROOT = Path(__file__).parents[2]
PAGES = {
    name: (ROOT / name).read_text() for name in ("README.md", "docs/tutorials/first-server.md")
}


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (name, block)
        for name, text in PAGES.items()
        for block in re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


async def run_program(code: str) -> str:
    """Output of a Python program; it must not fail or warn."""
    done = await trio.run_process(
        [sys.executable, "-W", "error", "-c", code], capture_stdout=True, stderr=subprocess.STDOUT
    )
    return done.stdout.decode()


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "code"), [block for block in blocks("python") if "openai" not in block[1]]
)
async def test_program_without_a_server(name: str, code: str) -> None:
    await run_program(code.replace('"demo"', '"tiny-random", threads=1'))


@pytest.mark.slow
@pytest.mark.e2e
async def test_programs_that_ask_a_server() -> None:
    programs = [code for _, code in blocks("python") if "openai" in code]
    assert len(programs) == 2
    ready, urls = trio.Event(), list[str]()

    def on_ready(url: str, engine: object) -> None:
        urls.append(url)
        ready.set()

    config = EngineConfig.of("tiny-random", threads=1, max_model_len=64)
    server = ServerConfig(port=0, served_model_name=("demo",))
    async with trio.open_nursery() as nursery:

        async def run_server() -> None:
            await serve(config, server, on_ready=on_ready, handle_signals=False)

        nursery.start_soon(run_server)
        await ready.wait()
        for code in programs:
            assert await run_program(code.replace("http://127.0.0.1:8000", urls[0]))
        nursery.cancel_scope.cancel()


def test_settings_file_of_the_tutorial_is_valid(tmp_path: Path) -> None:
    ((_, text),) = blocks("toml")
    (tmp_path / "settings.toml").write_text(text)
    settings = read_settings(tmp_path / "settings.toml")
    assert settings == {"model": "demo", "port": 9000, "api_keys": ["secret"], "max_num_seqs": 16}
    assert tomllib.loads(text)["scheduler"] == {"max_num_seqs": 16}


def test_files_that_are_linked_exist() -> None:
    for name, text in PAGES.items():
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            assert ((ROOT / name).parent / link).exists(), f"{name} links {link}"
