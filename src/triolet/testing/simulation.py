"""`simulate(scenario, seed)`: the whole engine in one thread, on a virtual clock, replayable.

The real tracker, scheduler, dispatcher, runner actor and engine; a simulated worker and
simulated clients. A run is a pure function of (commit, scenario, seed, interventions).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import attrs
import trio
from trio.testing import MockClock, wait_all_tasks_blocked
from typing_extensions import override

from triolet.actor.supervisor import only_exception
from triolet.config import EngineConfig
from triolet.engine.client import Health
from triolet.engine.insides import EngineInsides
from triolet.engine.open_engine import EngineParts, open_engine_from_parts
from triolet.errors import ConfigError, InternalError, TrioletError
from triolet.messages.runner_to_scheduler import RunnerInfo
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.runner.backend import Progress
from triolet.server.api.app import Api
from triolet.testing.checks import (
    CHECKS,
    END_CHECKS,
    IDLE_CHECKS,
    METRICS_CHECKS,
    check_canary,
    run_checks,
)
from triolet.testing.clients import SimulatedClient
from triolet.testing.determinism import deterministic_schedule
from triolet.testing.engines import fake_parts
from triolet.testing.excuses import death_is_excused
from triolet.testing.fake_runner import FakeRunner, fake_facts
from triolet.testing.http import AsgiClient
from triolet.testing.nemesis import InjectedStepError, Nemesis
from triolet.testing.scenario import Scenario
from triolet.testing.simulated_offload import SimulatedOffload
from triolet.testing.simulated_transport import SimulatedTransport
from triolet.testing.trace import Trace
from triolet.testing.watcher import Intervention, Watcher
from triolet.testing.workloads import draw_plans
from triolet.testing.world import Violation, World
from triolet.tokenizer.byte_tokenizer import ByteTokenizer

NUM_BLOCKS = 64
"""Blocks of the simulated KV cache where a scenario does not set `kv_cache_tokens`."""

TOKENIZER = ByteTokenizer()
"""Of every run: it has no state, and compiling its template takes longer than a run."""


class SimulationFailed(AssertionError):
    """A guarantee was broken in a simulated run; the message has the token to replay it."""


@attrs.frozen
class Run:
    """What came of one simulated run.

    Attributes:
        scenario: What was played.
        seed: Of everything that was drawn.
        interventions: What a sweep did in the middle of it.
        trace: What happened; `trace.digest()` is equal for equal runs.
        ticks: Steps of trio's scheduler.
        virtual_s: Virtual seconds it took.
        violations: Guarantees that were broken.
        counts: See `World.counts`.
        targets: For each tick, which clients a sweep could cancel there, and which actor it
            could crash; empty unless asked for.
    """

    scenario: Scenario
    seed: int
    interventions: tuple[Intervention, ...]
    trace: Trace
    ticks: int
    virtual_s: float
    violations: tuple[Violation, ...]
    counts: Counter[str]
    targets: tuple[tuple[tuple[int, ...], str | None], ...]

    @property
    def token(self) -> str:
        """Names this run: "scenario:seed:interventions"."""
        return ":".join(
            [self.scenario.name, str(self.seed), ",".join(map(str, self.interventions))]
        ).rstrip(":")

    def check(self) -> None:
        """Raise `SimulationFailed` if a guarantee was broken."""
        if self.violations:
            found = "\n".join(f"  {violation}" for violation in self.violations)
            raise SimulationFailed(f"replay token {self.token}\n{found}")


def simulate(
    scenario: Scenario,
    seed: int,
    interventions: Sequence[Intervention] = (),
    *,
    record_targets: bool = False,
) -> Run:
    """Play a scenario once. Takes no real time to speak of; opens no thread and no socket.

    Must not be called inside a trio run: it is one of its own.

    Args:
        scenario: What to play.
        seed: Decides everything that is drawn, the order of the tasks included.
        interventions: What to do before which tick; see `sweeps.py`.
        record_targets: Fill `Run.targets`.

    Raises:
        ConfigError: The scenario names a check that there is not.
        InternalError: This is a trio run already.
    """
    if trio.lowlevel.in_trio_run():
        raise InternalError("a simulation is a trio run of its own: call it outside of one")
    unknown = sorted(set(scenario.skip_checks) - set(CHECKS))
    if unknown:
        raise ConfigError(
            f"scenario {scenario.name}: skip_checks names {', '.join(unknown)}; the checks are "
            f"{', '.join(sorted(CHECKS))}",
            param="skip_checks",
        )
    clock = MockClock(autojump_threshold=0.0)
    world = World(scenario, scenario.config(), seed, clock)
    watcher = Watcher(world, interventions, record_targets)
    with deterministic_schedule(seed), _captured_log(world):
        try:
            virtual_s = trio.run(
                _Play(world).run,
                clock=clock,
                instruments=[watcher],
                restrict_keyboard_interrupt_to_checkpoints=True,
            )
        except* Exception as group:
            virtual_s = 0.0
            world.violations.append(
                Violation("crash", repr(only_exception(group)), world.tick, 0.0)
            )
    assert watcher.is_alive, "trio removed the instrument because it raised"
    return Run(
        scenario,
        seed,
        tuple(interventions),
        world.trace,
        world.tick,
        virtual_s,
        tuple(world.violations),
        world.counts,
        tuple(watcher.targets),
    )


class _Play:
    """The tasks of one run: clients, nemesis and the engine they meet at."""

    def __init__(self, world: World) -> None:
        self._world = world
        world.clients = [
            SimulatedClient(plan, world) for plan in draw_plans(world.scenario, world.seed)
        ]
        self._present = len(world.clients)

    async def run(self) -> float:
        """Play to the end; returns the virtual seconds it took."""
        world = self._world
        world.start_time = trio.current_time()
        tasks_before = trio.lowlevel.current_statistics().tasks_living
        with trio.move_on_after(world.scenario.horizon_s) as horizon:
            async with trio.open_nursery() as nursery:
                offload = SimulatedOffload(nursery, world.scenario.model.tokenize_s)
                parts, nemesis = self._build(offload)
                for client in world.clients:
                    nursery.start_soon(self._be_client, client)
                await self._serve(parts, nemesis)
        if horizon.cancelled_caught:
            present = [c.number for c in world.clients if c.end is None]
            world.violate("progress", f"clients {present} are still there at the horizon")
            return world.now
        tasks_left = trio.lowlevel.current_statistics().tasks_living - tasks_before
        if tasks_left:
            world.violate("tasks", f"{tasks_left} tasks are left")
        run_checks(world, END_CHECKS)
        if world.insides is not None:
            for (state, cause), number in world.insides.registry.ended.items():
                world.counts[f"ended {state} by {cause}"] += number
        return world.now

    def _build(self, offload: SimulatedOffload) -> tuple[EngineParts, Nemesis]:
        world, model = self._world, self._world.scenario.model
        facts = fake_facts(model.context_len)
        config = world.config

        def build() -> FakeRunner:
            return _CheckedRunner(config, world, nemesis)

        def watch(insides: EngineInsides) -> None:
            world.insides = insides

        def step_time(batch: ScheduledBatch) -> float:
            return nemesis.step_time(batch)

        transport = SimulatedTransport(
            build, step_time, model.load_s, lambda result: nemesis.alter(result)
        )
        world.transport = transport
        parts = attrs.evolve(
            fake_parts(facts, transport, world.seed, TOKENIZER), offload=offload, watch=watch
        )
        nemesis = Nemesis(world, parts.faults)
        return parts, nemesis

    async def _be_client(self, client: SimulatedClient) -> None:
        try:
            await client.run()
        finally:
            self._present -= 1
            if not self._present:
                self._world.all_left.set()

    async def _serve(self, parts: EngineParts, nemesis: Nemesis) -> None:
        """The life of the engine, from its opening to its end."""
        world = self._world
        try:
            with world.service_scope:
                async with open_engine_from_parts(world.config, parts) as engine:
                    world.engine = engine
                    world.max_model_len = engine.max_model_len
                    api = Api(engine, offload=parts.offload, clock=trio.current_time)
                    world.http = AsgiClient(api)
                    world.open_time = trio.current_time()
                    world.opened.set()
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(nemesis.run)
                        with world.body_scope:
                            await world.all_left.wait()
                            await self._idle()
                        nursery.cancel_scope.cancel()
        except TrioletError as error:
            world.death = error
            world.note("engine", "dead", error.code)
        finally:
            world.open_time = trio.current_time() if not world.opened.is_set() else world.open_time
            world.opened.set()

    async def _idle(self) -> None:
        """Everyone is gone: what is left, and does it still serve?"""
        world = self._world
        assert world.engine is not None
        await wait_all_tasks_blocked()
        run_checks(world, IDLE_CHECKS)
        run_checks(world, METRICS_CHECKS)
        if world.engine.health not in (Health.SERVING, Health.STARTING):
            return
        try:
            for finding in await check_canary(world):
                world.violate("canary", finding)
        except TrioletError as error:
            is_closing = world.excuses.drained or world.excuses.closed
            if not (is_closing or death_is_excused(world)):
                world.violate("canary", f"it got {error!r}")
            return
        run_checks(world, IDLE_CHECKS)


class _CheckedRunner(FakeRunner):
    """A fake runner whose own complaints are violations, and not just its death."""

    def __init__(self, config: EngineConfig, world: World, nemesis: Nemesis) -> None:
        model = world.scenario.model
        super().__init__(
            config,
            fake_facts(model.context_len),
            num_blocks=NUM_BLOCKS,
            groups=[(1, window or None) for window in model.windows],
            steps_in_flight=model.steps_in_flight,
            eos_one_in=model.eos_one_in,
            before_step=nemesis.before_step,
            row_error=nemesis.row_error,
        )
        self._world = world
        self._nemesis = nemesis

    @override
    def load(self, progress: Progress, num_blocks: int | None = None) -> RunnerInfo:
        self._nemesis.load()
        return super().load(progress, num_blocks)

    @override
    def launch(self, batch: ScheduledBatch) -> None:
        world = self._world
        rows = tuple(
            (s.sequence_id, s.num_computed_tokens, s.num_new_tokens, s.new_block_ids)
            for s in batch.scheduled
        )
        world.note("step", batch.incarnation, batch.step, rows, tuple(batch.ended))
        try:
            super().launch(batch)
        except InjectedStepError:
            raise
        except Exception as error:
            world.violate("kv_content", f"step {batch.step}: {error!r}")
            raise


class _ErrorLog(logging.Handler):
    """Remembers what is logged as an error."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self._world.logged_errors.append(record.getMessage())


@contextmanager
def _captured_log(world: World) -> Generator[None]:
    """Keep what the engine logs out of the program's own log, for one run."""
    logger = logging.getLogger("triolet")
    handler, propagated = _ErrorLog(world), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated
