"""Reruns a scenario once per scheduler tick and strikes there: every point there is, in turn.

Because a run depends on nothing but its seed, the run that is cancelled at tick k is the same
as the quiet one up to tick k. So the sweeps cover "cancelled while blocked", "cancelled after
the wake-up and before it ran" and everything in between, not what happens to be hit.

* `cancel_sweep`: a client leaves at each tick at which one is there.
* `crash_sweep`: the actor that is about to run raises where it waits.
* `shutdown_sweep`: the block of the engine is left, or the scope around it cancelled.
* `pair_sweep`: two clients leave, at pairs of ticks drawn from a seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import attrs

from triolet.errors import ConfigError
from triolet.testing.scenario import Scenario
from triolet.testing.simulation import Run, SimulationFailed, simulate
from triolet.testing.watcher import Intervention

FAILURES_MAX = 10
"""Failed runs that a report keeps; the others are only counted."""


@attrs.define
class SweepReport:
    """What came of many runs.

    Attributes:
        runs: How many.
        ticks: In all of them.
        points: Interventions made: places at which something was cancelled or crashed.
        num_failed: Runs in which a guarantee was broken.
        failures: The first of them.
        counts: Of all runs together; see `World.counts`.
    """

    runs: int = 0
    ticks: int = 0
    points: int = 0
    num_failed: int = 0
    failures: list[Run] = attrs.field(factory=list[Run])
    counts: Counter[str] = attrs.field(factory=Counter[str])

    def add(self, run: Run) -> None:
        """Take a run in."""
        self.runs += 1
        self.ticks += run.ticks
        self.points += len(run.interventions)
        self.counts += run.counts
        if run.violations:
            self.num_failed += 1
            if len(self.failures) < FAILURES_MAX:
                self.failures.append(run)

    def check(self) -> None:
        """Raise `SimulationFailed` with every replay token, if a guarantee was broken."""
        if self.failures:
            lines = [
                f"{run.token}: {violation}" for run in self.failures for violation in run.violations
            ]
            raise SimulationFailed(
                f"{self.num_failed} of {self.runs} runs broke a guarantee:\n" + "\n".join(lines)
            )


def sweep_seeds(scenario: Scenario, seeds: Iterable[int]) -> SweepReport:
    """Play a scenario once per seed, without intervening."""
    return _play(scenario, ((seed, ()) for seed in seeds))


def cancel_sweep(
    scenario: Scenario, seed: int, *, every: int = 1, victims: str = "rotate"
) -> SweepReport:
    """Cancel a client before each tick.

    Args:
        scenario: What to play.
        seed: Of every run.
        every: Take each n-th tick only.
        victims: "rotate" cancels one client per tick, another one each time; "all" makes a
            run for each client that is there.

    Raises:
        ConfigError: `victims` is neither.
    """
    if victims not in ("rotate", "all"):
        raise ConfigError(f'victims must be "rotate" or "all", got {victims!r}', param="victims")
    targets = _targets(scenario, seed)

    def plans() -> Iterator[Intervention]:
        for tick in range(0, len(targets), every):
            present, _ = targets[tick]
            if victims == "rotate" and present:
                present = (present[tick % len(present)],)
            for client in present:
                yield Intervention("cancel", tick, client)

    return _play(scenario, ((seed, (plan,)) for plan in plans()))


def crash_sweep(scenario: Scenario, seed: int, *, every: int = 1) -> SweepReport:
    """Raise in an actor before each tick at which one is about to run.

    Args:
        scenario: What to play.
        seed: Of every run.
        every: Take each n-th such tick only.
    """
    ticks = [tick for tick, (_, actor) in enumerate(_targets(scenario, seed)) if actor]
    return _play(scenario, ((seed, (Intervention("crash", tick),)) for tick in ticks[::every]))


def shutdown_sweep(scenario: Scenario, seed: int, *, every: int = 1) -> SweepReport:
    """Leave the block of the engine, or cancel the scope around it, before each tick.

    Args:
        scenario: What to play.
        seed: Of every run.
        every: Take each n-th tick only.
    """
    ticks = range(0, len(_targets(scenario, seed)), every)
    plans = (
        Intervention("abort" if number % 2 else "close", tick) for number, tick in enumerate(ticks)
    )
    return _play(scenario, ((seed, (plan,)) for plan in plans))


def pair_sweep(scenario: Scenario, seed: int, *, pairs: int) -> SweepReport:
    """Cancel two clients, at a number of pairs of ticks.

    Args:
        scenario: What to play.
        seed: Of every run, and of the choice of the pairs.
        pairs: How many.
    """
    present = [
        (tick, client)
        for tick, (clients, _) in enumerate(_targets(scenario, seed))
        for client in clients
    ]
    rng = random.Random(f"{seed} pairs")

    def plans() -> Iterator[Sequence[Intervention]]:
        for _ in range(pairs if present else 0):
            chosen = sorted(rng.choice(present) for _ in range(2))
            yield [Intervention("cancel", tick, client) for tick, client in chosen]

    return _play(scenario, ((seed, plan) for plan in plans()))


def replay(scenario: Scenario, token: str) -> Run:
    """Play the run that a token names.

    Raises:
        ConfigError: It is no token, or one of another scenario.
    """
    name, _, rest = token.partition(":")
    seed, _, interventions = rest.partition(":")
    if name != scenario.name or not seed.isdecimal():
        raise ConfigError(
            f"{token!r} names no run of scenario {scenario.name}: expected "
            f"{scenario.name}:SEED or {scenario.name}:SEED:INTERVENTION,...",
            param="replay",
        )
    parsed = [Intervention.parse(text) for text in interventions.split(",") if text]
    return simulate(scenario, int(seed), parsed)


def _targets(scenario: Scenario, seed: int) -> tuple[tuple[tuple[int, ...], str | None], ...]:
    return simulate(scenario, seed, record_targets=True).targets


def _play(scenario: Scenario, plans: Iterable[tuple[int, Sequence[Intervention]]]) -> SweepReport:
    report = SweepReport()
    for seed, interventions in plans:
        report.add(simulate(scenario, seed, interventions))
    return report
