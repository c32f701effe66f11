"""The standard scenarios, and what a number of seeds of each came to."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

from triolet.testing.scenario import Scenario, load_scenario
from triolet.testing.sweeps import SweepReport, sweep_seeds

FOLDER = Path(__file__).parents[1] / "simulation" / "scenarios"
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))
SEEDS = range(8)


@functools.cache
def scenario(name: str) -> Scenario:
    return load_scenario(FOLDER / f"{name}.toml")


@functools.cache
def report(name: str) -> SweepReport:
    """`SEEDS` of a scenario, played once per session."""
    return sweep_seeds(scenario(name), SEEDS)


@functools.cache
def counts() -> Counter[str]:
    """Of all scenarios together."""
    total: Counter[str] = Counter()
    for name in NAMES:
        total += report(name).counts
    return total
