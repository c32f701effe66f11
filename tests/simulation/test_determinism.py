"""A run is a function of its scenario, seed and interventions: here, in any process, anywhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from support import scenarios
from triolet.errors import InternalError
from triolet.testing.simulation import simulate
from triolet.testing.sweeps import cancel_sweep
from triolet.testing.trace import diff
from triolet.testing.watcher import Intervention

PLAYED = ["leaving-clients", "time-and-clogs", "worker-lies"]

PROGRAM = """
import sys
from pathlib import Path
from triolet.testing.scenario import load_scenario
from triolet.testing.simulation import simulate
junk = [bytearray(int(sys.argv[1]) * 37 + i) for i in range(1000)]  # other addresses
for path in sys.argv[2:]:
    print(simulate(load_scenario(Path(path)), 3).trace.digest())
"""


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_a_replay_is_equal_event_by_event(name: str) -> None:
    one, other = (simulate(scenarios.scenario(name), 5) for _ in range(2))
    assert diff(one.trace.events, other.trace.events) is None
    assert (one.ticks, one.counts, one.trace.digest()) == (
        other.ticks,
        other.counts,
        other.trace.digest(),
    )


def test_seeds_differ() -> None:
    digests = {simulate(scenarios.scenario("quiet"), seed).trace.digest() for seed in range(5)}
    assert len(digests) == 5


@pytest.mark.slow
def test_other_processes_and_hash_seeds_give_the_same_digests() -> None:
    expected = [simulate(scenarios.scenario(name), 3).trace.digest() for name in PLAYED]
    paths = [str(scenarios.FOLDER / f"{name}.toml") for name in PLAYED]
    for hash_seed in ("0", "12345"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, hash_seed, *paths],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        assert done.stdout.split() == expected


def test_an_intervention_changes_nothing_before_its_tick() -> None:
    scenario = scenarios.scenario("leaving-clients")
    quiet = simulate(scenario, 1)
    swept = simulate(scenario, 1, [Intervention("cancel", 150, 5)])
    parted = diff(quiet.trace.events, swept.trace.events)
    assert parted is not None
    assert parted.other is not None
    assert parted.other.detail[:2] == ("swept", 5)


def test_a_sweep_is_replayable_too() -> None:
    scenario = scenarios.scenario("deadlines")
    one, other = (cancel_sweep(scenario, 2, every=150) for _ in range(2))
    assert one.runs == other.runs > 2
    assert one.counts == other.counts


async def test_a_simulation_inside_a_run_is_refused() -> None:
    with pytest.raises(InternalError, match="trio run of its own"):
        simulate(scenarios.scenario("no-start"), 0)
