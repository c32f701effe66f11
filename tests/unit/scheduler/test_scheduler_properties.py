"""The whole scheduler under random actions, on machines of random shape.

`support.scheduler_simulation` compares every output with a naive generator and every KV read
with what was stored. A failing seed is replayed with `run(seed, actions)`.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from typing_extensions import override

from support.scheduler_simulation import (
    SchedulerSimulation,
    act,
    random_simulation,
    stop_random,
    submit_random,
)

STEPS_MAX = 20_000
"""A simulation has at most a dozen live requests of a few hundred tokens."""


def run(seed: int, actions: int) -> SchedulerSimulation:
    """Random actions, then let everything finish; integrity after each."""
    rng = random.Random(seed)
    simulation = random_simulation(rng)
    for _ in range(actions):
        act(simulation, rng)
        simulation.check()
    simulation.drain(STEPS_MAX)
    simulation.check()
    return simulation


@pytest.mark.parametrize("first_seed", range(0, 72, 6))
def test_random_schedules_equal_the_naive_generator(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 6):
        run(seed, 50)


@pytest.mark.slow
def test_many_random_schedules_reach_every_rare_event() -> None:
    totals = [run(seed, 150).scheduler.statistics() for seed in range(1000, 1200)]
    for name in ("preemptions", "recomputed_tokens", "dropped_results", "prefix_hits"):
        assert sum(getattr(t, name) for t in totals) > 100, f"{name} hardly happened"
    assert sum(t.runner_losses for t in totals) > 100


def test_a_simulation_is_a_function_of_its_seed() -> None:
    first, second = run(3, 120), run(3, 120)
    assert first.scheduler.statistics() == second.scheduler.statistics()
    assert list(first.finished) == list(second.finished)


class SchedulerMachine(RuleBasedStateMachine):
    """The same actions, chosen by hypothesis, so that a failure shrinks."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.simulation = random_simulation(random.Random(seed))

    @rule(seed=st.integers(0, 2**32))
    def submit(self, seed: int) -> None:
        if len(self.simulation.clients) < 8:
            submit_random(self.simulation, random.Random(seed))

    @rule()
    def launch(self) -> None:
        self.simulation.launch()

    @rule()
    def collect(self) -> None:
        self.simulation.collect()

    @rule(count=st.integers(1, 20))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.simulation.step()

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.simulation.clients:
            self.simulation.end(data.draw(st.sampled_from(sorted(self.simulation.clients))))

    @rule(seed=st.integers(0, 2**32), data=st.data())
    def stop(self, seed: int, data: st.DataObject) -> None:
        if self.simulation.clients:
            request = data.draw(st.sampled_from(sorted(self.simulation.clients)))
            stop_random(self.simulation, random.Random(seed), self.simulation.clients[request])

    @rule()
    def lose_runner(self) -> None:
        self.simulation.lose_runner()

    @rule()
    def reset_prefix_cache(self) -> None:
        self.simulation.scheduler.reset_prefix_cache()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.check()

    @override
    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.drain(STEPS_MAX)
            self.simulation.check()


SchedulerMachine.TestCase.settings = settings(max_examples=8, stateful_step_count=25, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
