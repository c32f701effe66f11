"""`triolet simulate`: play a scenario of faults against the real engine, seed by seed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from triolet.errors import ConfigError
from triolet.testing.scenario import Scenario, load_scenario
from triolet.testing.sweeps import (
    SweepReport,
    cancel_sweep,
    crash_sweep,
    pair_sweep,
    replay,
    shutdown_sweep,
    sweep_seeds,
)

PAIRS = 200
"""Pairs of cancels of one sweep: their full number is that of the ticks, squared."""


def simulate(
    scenarios: Annotated[
        list[Path], Parameter(help="TOML files; docs/reference/faults.md says what is in them.")
    ],
    /,
    *,
    seeds: Annotated[int, Parameter(help="Play each scenario with this many seeds.")] = 100,
    first_seed: Annotated[int, Parameter(help="The first of them.")] = 0,
    sweep: Annotated[
        bool, Parameter(negative="", help="Strike before every scheduler tick instead, per seed.")
    ] = False,
    every: Annotated[int, Parameter(help="With --sweep: before each n-th tick only.")] = 1,
    replay_token: Annotated[
        str | None, Parameter(name="--replay", help="Play the run of this token and show it.")
    ] = None,
    counts: Annotated[
        bool, Parameter(negative="", help="Show how often each fault, state and end came up.")
    ] = False,
) -> int:
    """Play scenarios of faults against the real engine, on a virtual clock.

    Exit code 1 if a guarantee was broken; each failed run is printed with the token that
    replays it.
    """
    for name, value in (("--seeds", seeds), ("--every", every)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}", param=name)
    console = Console(highlight=False, soft_wrap=True)
    loaded = [load_scenario(path) for path in scenarios]
    if replay_token is not None:
        return _replay(console, loaded, replay_token)
    seed_range = range(first_seed, first_seed + seeds)
    failed = False
    total: Counter[str] = Counter()
    for scenario in loaded:
        for name, play in _plays(scenario, seed_range, every if sweep else None):
            report = _timed(console, f"{scenario.name:20} {name:9}", play)
            total += report.counts
            failed = failed or report.num_failed > 0
    if counts:
        for what, number in sorted(total.items()):
            console.print(f"{number:10}  {what}")
    return 1 if failed else 0


def _plays(
    scenario: Scenario, seeds: range, every: int | None
) -> Iterator[tuple[str, Callable[[], SweepReport]]]:
    """What to play, by name; `every` is None unless ticks are swept."""
    if every is None:
        yield "seeds", lambda: sweep_seeds(scenario, seeds)
        return
    step = every
    for seed in seeds:

        def cancels(seed: int = seed) -> SweepReport:
            return cancel_sweep(scenario, seed, every=step)

        def crashes(seed: int = seed) -> SweepReport:
            return crash_sweep(scenario, seed, every=step)

        def shutdowns(seed: int = seed) -> SweepReport:
            return shutdown_sweep(scenario, seed, every=step)

        def pairs(seed: int = seed) -> SweepReport:
            return pair_sweep(scenario, seed, pairs=max(1, PAIRS // step))

        yield "cancels", cancels
        yield "crashes", crashes
        yield "shutdowns", shutdowns
        yield "pairs", pairs


def _timed(console: Console, title: str, play: Callable[[], SweepReport]) -> SweepReport:
    start = time.process_time()
    report = play()
    cpu_s = max(time.process_time() - start, 1e-9)
    verdict = f"{report.num_failed} failed" if report.num_failed else "none failed"
    console.print(
        f"{title} {report.runs:6} runs, {verdict}; {report.runs / cpu_s:.0f} runs and "
        f"{report.ticks / cpu_s:.0f} ticks per CPU second"
    )
    for run in report.failures:
        console.print(f"  {run.token}", style="red", markup=False)
        for violation in run.violations:
            console.print(f"    {violation}", markup=False)
    return report


def _replay(console: Console, scenarios: list[Scenario], token: str) -> int:
    """Play one run and print its events."""
    name = token.partition(":")[0]
    for scenario in scenarios:
        if scenario.name == name:
            run = replay(scenario, token)
            for event in run.trace.events:
                console.print(str(event), markup=False)
            for violation in run.violations:
                console.print(str(violation), style="red", markup=False)
            console.print(f"digest {run.trace.digest()}, {run.ticks} ticks")
            return 1 if run.violations else 0
    raise ConfigError(f"no scenario is called {name!r}", param="--replay")
