"""Cancelled, crashed or closed before any tick: no guarantee breaks."""

from __future__ import annotations

import pytest

from support import scenarios
from triolet.errors import ConfigError
from triolet.testing.scenario import scenario_of
from triolet.testing.sweeps import (
    cancel_sweep,
    crash_sweep,
    pair_sweep,
    replay,
    shutdown_sweep,
)

TINY = scenario_of(
    {
        "name": "tiny",
        "engine": {"kv_cache_tokens": 64, "max_num_seqs": 3, "block_size": 8},
        "model": {"steps_in_flight": 2, "load_s": 0.0},
        "workload": [
            {
                "clients": 3,
                "over_s": 0.02,
                "text_prompts": 0.4,
                "num_outputs": [1, 2],
                "prompt_tokens": [10, 30],
                "max_tokens": [2, 8],
                "stops": 0.3,
            }
        ],
        "fault": [{"kind": "runner_crash", "within_s": [0.02, 0.1]}],
    }
)
"""Small enough to be swept whole."""


@pytest.mark.slow
def test_cancelling_any_client_before_any_tick_harms_nobody() -> None:
    report = cancel_sweep(TINY, 0, every=3, victims="all")
    report.check()
    assert report.points > 60


@pytest.mark.slow
def test_a_crash_of_any_actor_at_any_wait_is_told_to_all() -> None:
    report = crash_sweep(TINY, 0, every=2)
    report.check()
    for actor in ("dispatcher", "runner", "scheduler", "tracker"):
        assert report.counts[f"crashed {actor}"] > 0, actor


@pytest.mark.slow
def test_leaving_the_engine_before_any_tick_leaves_nothing() -> None:
    report = shutdown_sweep(TINY, 0, every=3)
    report.check()
    assert report.counts["end unserved"] > 0
    assert report.counts["end refused"] > 0


@pytest.mark.slow
def test_pairs_of_cancels_harm_nobody() -> None:
    report = pair_sweep(TINY, 0, pairs=20)
    report.check()
    assert report.points == 40


@pytest.mark.slow
def test_clients_leave_while_their_request_is_preempted() -> None:
    report = cancel_sweep(scenarios.scenario("under-pressure"), 0, every=37)
    report.check()
    assert report.counts["cancelled in preempted"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", scenarios.NAMES)
def test_a_standard_scenario_is_swept(name: str) -> None:
    """A few ticks here; `triolet simulate --sweep` takes them all."""
    scenario = scenarios.scenario(name)
    cancel_sweep(scenario, 11, every=151).check()
    crash_sweep(scenario, 11, every=31).check()
    shutdown_sweep(scenario, 11, every=131).check()


def test_a_few_points_of_each_sweep() -> None:
    cancel_sweep(TINY, 1, every=90).check()
    crash_sweep(TINY, 1, every=70).check()
    shutdown_sweep(TINY, 1, every=100).check()


def test_a_token_names_a_run() -> None:
    report = cancel_sweep(TINY, 4, every=90)
    token = "tiny:4:cancel@90/0"
    run = replay(TINY, token)
    assert run.token == token
    assert run.counts["requests"] <= report.counts["requests"]


@pytest.mark.parametrize("token", ["tiny", "other:1", "tiny:x", "tiny:1:stab@3", "tiny:1:cancel@x"])
def test_a_token_that_names_none_is_refused(token: str) -> None:
    with pytest.raises(ConfigError):
        replay(TINY, token)


def test_victims_are_checked() -> None:
    with pytest.raises(ConfigError, match="rotate"):
        cancel_sweep(TINY, 0, victims="some")
