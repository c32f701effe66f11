"""Fixtures for tests of services built on triolet.

Opt in with one line in `conftest.py`:

    pytest_plugins = ["triolet.testing.pytest_plugin"]

It needs pytest-trio. Take `autojump_clock` (of pytest-trio) beside `fake_engine` or
`http_client` and the test takes no real time; not beside `fake_openai_server`, which has real
sockets.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from pytest_trio import trio_fixture

from triolet.engine.engine import Engine
from triolet.engine.offload import InlineOffload
from triolet.server.api.app import Api
from triolet.testing.engines import FakeHouse, open_fake_engine
from triolet.testing.fake_openai_server import FakeOpenAIServer, open_fake_openai_server
from triolet.testing.http import AsgiClient


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--triolet-seed`."""
    parser.addoption(
        "--triolet-seed",
        type=int,
        default=0,
        help="seed of fake engines and simulations (default 0)",
    )


def pytest_report_header(config: pytest.Config) -> str:
    """Say which seed a run had, so that it can be had again."""
    return f"triolet seed: {config.getoption('--triolet-seed')}"


@pytest.fixture
def triolet_seed(request: pytest.FixtureRequest) -> int:
    """The seed given with `--triolet-seed`."""
    seed = request.config.getoption("--triolet-seed")
    assert isinstance(seed, int)
    return seed


@trio_fixture  # type: ignore[untyped-decorator]  # pytest-trio has no types
async def fake_house(triolet_seed: int) -> AsyncGenerator[FakeHouse]:
    """A real engine on a fake model, with its worker and fault points in reach."""
    async with open_fake_engine(seed=triolet_seed) as house:
        yield house


@pytest.fixture
def fake_engine(fake_house: FakeHouse) -> Engine:
    """A real engine on a fake model."""
    return fake_house.engine


@pytest.fixture
def http_client(fake_house: FakeHouse) -> AsgiClient:
    """An HTTP client, in memory, of triolet's API over `fake_engine`."""
    return AsgiClient(Api(fake_house.engine, offload=InlineOffload()))


@trio_fixture  # type: ignore[untyped-decorator]  # pytest-trio has no types
async def fake_openai_server() -> AsyncGenerator[FakeOpenAIServer]:
    """A server that misbehaves on demand; see `triolet.testing.fake_openai_server`."""
    async with open_fake_openai_server() as server:
        yield server
