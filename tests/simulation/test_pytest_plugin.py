"""The plugin gives what it promises, to a test suite that opts in."""

from __future__ import annotations

import pytest

TESTS = """
import trio

async def test_engine(fake_engine, autojump_clock):
    async with fake_engine.generate("hello", deadline=60.0) as stream:
        assert await stream.text()

async def test_death(fake_house, autojump_clock):
    async with fake_house.engine.generate("hello", deadline=60.0) as stream:
        fake_house.transport.kill()
        assert await stream.text()
    assert fake_house.engine.statistics().runner_restarts == 1

async def test_http(http_client, autojump_clock):
    reply = await http_client.post("/v1/completions", {"prompt": "hi", "max_tokens": 3})
    assert reply.status == 200, reply.body
    assert reply.json()["usage"]["completion_tokens"] == 3

async def test_server(fake_openai_server):
    assert fake_openai_server.url.startswith("http://127.0.0.1:")

def test_seed(triolet_seed):
    assert triolet_seed == 7
"""


@pytest.mark.slow
def test_a_suite_that_opts_in_has_the_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntrio_mode = true\nfilterwarnings = error\n")
    pytester.makeconftest('pytest_plugins = ["triolet.testing.pytest_plugin"]\n')
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("--triolet-seed=7", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["triolet seed: 7"])
