"""The standard scenarios break no guarantee, and between them they reach everything."""

from __future__ import annotations

import tomllib

import pytest

from support import scenarios
from triolet.actor.faultpoint import POINTS
from triolet.testing.checks import CHECKS
from triolet.testing.faults import FAULT_CLASSES, FAULT_NAMES
from triolet.testing.sweeps import replay, sweep_seeds
from triolet.tracker.request_state import TRANSITIONS, RequestState

REGRESSIONS = tomllib.loads((scenarios.FOLDER.parent / "regressions.toml").read_text())

WITHIN_ONE_TICK = {
    # An engine that closed while the prompt was tokenized: made and ended in one stretch.
    (RequestState.RESERVED, RequestState.CANCELLED): "ended cancelled by consumer_error",
}
UNREACHABLE = {
    # Nothing that fails requests can run in that stretch; the table allows it all the same.
    (RequestState.RESERVED, RequestState.FAILED),
}


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_a_standard_scenario_breaks_no_guarantee(name: str) -> None:
    report = scenarios.report(name)
    report.check()
    assert report.runs == len(scenarios.SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", scenarios.NAMES)
def test_more_seeds_of_a_scenario_break_none_either(name: str) -> None:
    sweep_seeds(scenarios.scenario(name), range(100, 140)).check()


@pytest.mark.parametrize(
    ("token", "why"), [(entry["token"], entry["why"]) for entry in REGRESSIONS["regression"]]
)
def test_what_was_found_once_stays_fixed(token: str, why: str) -> None:
    assert why
    replay(scenarios.scenario(token.split(":", maxsplit=1)[0]), token).check()


@pytest.mark.parametrize("point", sorted(POINTS))
def test_every_fault_point_is_passed(point: str) -> None:
    assert scenarios.counts()[f"point {point}"] > 0


def test_every_fault_point_is_struck_by_some_scenario() -> None:
    """A point that is passed but never used to do harm proves nothing."""
    faults = [fault for name in scenarios.NAMES for fault in scenarios.scenario(name).faults]
    used = {getattr(fault, "point", None) for fault in faults}
    assert used - {None} == POINTS


@pytest.mark.parametrize("kind", sorted(FAULT_CLASSES))
def test_every_kind_of_fault_strikes(kind: str) -> None:
    faults = [fault for name in scenarios.NAMES for fault in scenarios.scenario(name).faults]
    assert kind in {FAULT_NAMES[type(fault)] for fault in faults}
    assert scenarios.counts()[f"fault {kind}"] > 0


@pytest.mark.parametrize(
    ("before", "after"),
    sorted((before, after) for before, states in TRANSITIONS.items() for after in states),
)
def test_every_transition_of_a_request_is_taken(before: RequestState, after: RequestState) -> None:
    if (before, after) in UNREACHABLE:
        assert scenarios.counts()[f"state {before} -> {after}"] == 0
        return
    key = WITHIN_ONE_TICK.get((before, after), f"state {before} -> {after}")
    assert scenarios.counts()[key] > 0


@pytest.mark.parametrize("phase", ["reserved", "queued", "waiting", "prefill", "decode"])
def test_requests_are_cancelled_in_every_phase(phase: str) -> None:
    """Leaving while preempted is rarer: test_sweeps.py has it."""
    assert scenarios.counts()[f"cancelled in {phase}"] > 0


@pytest.mark.parametrize("end", ["finished", "refused", "failed", "dead", "left", "unserved"])
def test_clients_come_to_every_kind_of_end(end: str) -> None:
    assert scenarios.counts()[f"end {end}"] > 0


def test_no_scenario_skips_a_check() -> None:
    assert CHECKS
    for name in scenarios.NAMES:
        assert scenarios.scenario(name).skip_checks == ()
