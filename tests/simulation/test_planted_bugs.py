"""The harness finds what it is for: each classic bug, planted, breaks a named guarantee."""

from __future__ import annotations

import pytest

from support import scenarios
from support.planted_bugs import BUGS, PlantedBug
from triolet.testing.checks import CHECKS
from triolet.testing.simulation import simulate

SEEDS_MAX = 40
KEPT_FAST = 8
"""Of the bugs, planted in every run of the tests; the others only in slow ones."""


def found_by(bug: PlantedBug) -> str | None:
    """The check that finds a planted bug first."""
    for seed in range(SEEDS_MAX):
        for name in bug.scenarios:
            violations = simulate(scenarios.scenario(name), seed).violations
            if violations:
                return violations[0].check
    return None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if number < KEPT_FAST else [pytest.mark.slow])
        for number, name in enumerate(sorted(BUGS))
    ],
)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    assert bug.checks <= set(CHECKS)
    bug.plant(monkeypatch)
    assert found_by(bug) in bug.checks
