"""Makes the faults of a scenario happen, each at a moment drawn from the seed of the run."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict, deque
from functools import partial
from typing import TypeVar, assert_never

import attrs
import trio

from triolet.actor.channel import Channel
from triolet.actor.faultpoint import POINTS, FaultPoints
from triolet.messages.runner_to_scheduler import BatchResult
from triolet.messages.scheduler_to_runner import ScheduledBatch, SequenceState
from triolet.request import SequenceId
from triolet.testing import faults as f
from triolet.testing.fake_runner import fake_facts
from triolet.testing.workloads import POISON_TOKEN, ROW_ERROR_TOKEN
from triolet.testing.world import World

T = TypeVar("T")
F = TypeVar("F", bound=f.Fault)

StepFault = (
    f.RunnerHang
    | f.SlowStep
    | f.StepError
    | f.CorruptResult
    | f.LostResult
    | f.RepeatedResult
    | f.LoadFailure
)
"""Faults that wait for the next occasion once their moment has come."""


WRONG_STEP_DISTANCE = 1000
"""A result that claims a step near its own could, beside a lost one, be a lie that nobody can
tell from the truth."""


class InjectedCrash(Exception):
    """What an actor raises that was made to crash."""


class InjectedStepError(Exception):
    """What a step raises that was made to fail."""


class Nemesis:
    """Strikes one run.

    Args:
        world: The run.
        faults: The fault points of its engine.
    """

    def __init__(self, world: World, faults: FaultPoints) -> None:
        self._world = world
        self._rng = world.rng("nemesis")
        self._timed: list[tuple[float, f.Fault]] = []
        self._at_pass: defaultdict[str, defaultdict[int, list[f.Fault]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._passes: Counter[str] = Counter()
        self._waiting: deque[StepFault] = deque()
        self._poison: set[SequenceId] = set()
        self._last_result: BatchResult | None = None
        for fault in world.scenario.faults:
            self._schedule(fault)
        self._timed.sort(key=lambda timed: timed[0])
        for point in sorted(POINTS):
            faults.arm(point, partial(self._pass, point))

    def _schedule(self, fault: f.Fault) -> None:
        if isinstance(fault, f.LoadFailure) and fault.first:
            self._waiting.append(fault)
            return
        for _ in range(fault.times):
            if isinstance(fault, (f.ActorCrash, f.ClientLeaves)) and fault.point is not None:
                number = self._rng.randint(*fault.at_pass)
                self._at_pass[fault.point][number].append(fault)
            else:
                self._timed.append((self._rng.uniform(*fault.within_s), fault))

    # What strikes at a time.

    async def run(self) -> None:
        """Strike, from the opening of the engine on; returns when nothing is left to do."""
        async with trio.open_nursery() as nursery:
            for seconds, fault in self._timed:
                await trio.sleep_until(self._world.open_time + seconds)
                self._strike(fault, nursery)

    def _strike(self, fault: f.Fault, nursery: trio.Nursery) -> None:
        world = self._world
        engine, transport = world.engine, world.transport
        assert engine is not None
        assert transport is not None
        match fault:
            case f.RunnerCrash():
                transport.kill()
            case f.ClientLeaves():
                if not self._send_someone_away():
                    return
            case f.CancelById():
                nursery.start_soon(self._cancel_by_id)
                return
            case f.ClockJump():
                world.excuses.clock_jumped = True
                world.clock.jump(self._rng.uniform(*fault.by_s))
            case f.Clog():
                self._clog(fault, nursery)
            case f.CacheReset():
                engine.reset_prefix_cache()
            case f.Drain():
                nursery.start_soon(self._drain, self._rng.uniform(*fault.grace_s))
            case f.Close():
                world.excuses.closed = True
                world.body_scope.cancel()
            case (
                f.RunnerHang()
                | f.SlowStep()
                | f.StepError()
                | f.CorruptResult()
                | f.LostResult()
                | f.RepeatedResult()
                | f.LoadFailure()
            ):
                self._waiting.append(fault)
                return  # told when it strikes
            case _:
                raise AssertionError(f"{fault} does not strike at a time")
        self._tell(fault)

    def _send_someone_away(self) -> bool:
        present = self._world.cancellable()
        if present:
            self._world.leave(self._rng.choice(present), "left")
        return bool(present)

    async def _cancel_by_id(self) -> None:
        world = self._world
        assert world.insides is not None
        assert world.engine is not None
        live = [entry for entry in world.insides.registry if not entry.state.is_final]
        if live:
            entry = self._rng.choice(live)
            world.excuses.cancelled_labels.add(entry.request.label)
            await world.engine.cancel(entry.request_id)
            self._tell(f.CancelById())

    async def _drain(self, grace_s: float) -> None:
        world = self._world
        assert world.engine is not None
        world.excuses.drained = True
        await world.engine.drain(grace_s)
        world.excuses.closed = True
        world.body_scope.cancel()

    def _clog(self, fault: f.Clog, nursery: trio.Nursery) -> None:
        assert self._world.insides is not None
        wiring = self._world.insides.wiring
        match fault.channel:
            case "tracker":
                self._hold_up(wiring.tracker, fault, nursery)
            case "scheduler":
                self._hold_up(wiring.scheduler, fault, nursery)
            case "runner":
                self._hold_up(wiring.runner, fault, nursery)
            case "dispatcher":
                self._hold_up(wiring.dispatcher, fault, nursery)
            case _:
                assert_never(fault.channel)

    def _hold_up(self, channel: Channel[T], fault: f.Clog, nursery: trio.Nursery) -> None:
        async def wait_turns() -> None:
            for _ in range(fault.turns):
                await trio.lowlevel.checkpoint()

        async def let_go() -> None:
            await trio.sleep(fault.lasts_s)
            channel.hold_up = None

        channel.hold_up = wait_turns
        nursery.start_soon(let_go)

    # What strikes at a fault point.

    def _pass(self, point: str) -> None:
        self._passes[point] += 1
        self._world.count(f"point {point}")
        for fault in self._at_pass[point].pop(self._passes[point], ()):
            if isinstance(fault, f.ClientLeaves):
                if self._send_someone_away():
                    self._tell(fault)
            else:
                self._tell(fault)
                self._world.excuses.actors_crashed.append(point.split(".", maxsplit=1)[0])
                raise InjectedCrash(f"at pass {self._passes[point]} of {point}")

    # What strikes in the worker: the hooks of the simulated runner.

    def load(self) -> None:
        """Called at the beginning of each loading; raises if it is to fail."""
        fault = self._take(f.LoadFailure)
        if fault is not None:
            self._world.excuses.load_failed = True
            raise InjectedStepError("loading was made to fail")

    def before_step(self, batch: ScheduledBatch) -> None:
        """Called with each batch; raises if the step is to kill the worker."""
        for state in batch.new:
            if state.token_ids[0] == POISON_TOKEN:
                self._poison.add(state.sequence_id)
        if self._poison.intersection(s.sequence_id for s in batch.scheduled):
            raise InjectedStepError("poison")
        fault = self._take(f.StepError)
        if fault is not None:
            raise InjectedStepError(fault.message)

    def step_time(self, batch: ScheduledBatch) -> float:
        """Seconds that a step takes."""
        if self._take(f.RunnerHang) is not None:
            return math.inf
        slow = self._take(f.SlowStep)
        if slow is not None:
            return self._rng.uniform(*slow.takes_s)
        return self._world.scenario.model.step_s

    def row_error(self, state: SequenceState) -> str | None:
        """Why a sequence fails alone, if it does."""
        return "made to fail" if state.token_ids[0] == ROW_ERROR_TOKEN else None

    def alter(self, result: BatchResult) -> BatchResult | None:
        """What becomes of a result."""
        last, self._last_result = self._last_result, result
        if self._take(f.LostResult) is not None:
            return None
        if last is not None and self._take(f.RepeatedResult) is not None:
            return last
        fault = self._take(f.CorruptResult)
        return result if fault is None else _corrupt(result, fault.how, self._rng)

    def _take(self, kind: type[F]) -> F | None:
        """The first fault of a kind that waits for this occasion."""
        for fault in self._waiting:
            if isinstance(fault, kind):
                self._waiting.remove(fault)
                self._tell(fault)
                return fault
        return None

    def _tell(self, fault: f.Fault) -> None:
        name = f.FAULT_NAMES[type(fault)]
        self._world.count(f"fault {name}")
        self._world.note("fault", name)


def _corrupt(result: BatchResult, how: str, rng: random.Random) -> BatchResult:
    """An answer that no sound worker gives. Whoever forwards it has failed."""
    if how == "any":
        how = rng.choice(f.CORRUPTIONS)
    if how == "stranger":
        return attrs.evolve(
            result,
            sequence_ids=[*result.sequence_ids, SequenceId(-1)],
            token_ids=[*result.token_ids, 40],
            logprobs=[],
        )
    if how == "wrong_step" or not result.token_ids:
        return attrs.evolve(result, step=result.step + WRONG_STEP_DISTANCE)
    ids, tokens = list(result.sequence_ids), list(result.token_ids)
    row = rng.randrange(len(ids))
    match how:
        case "token_out_of_range":
            tokens[row] = fake_facts().vocab_size + row
        case "missing_row":
            del ids[row], tokens[row]
        case "repeated_row":
            ids.append(ids[row])
            tokens.append(tokens[row])
        case _:
            raise AssertionError(f"no corruption is called {how!r}")
    return attrs.evolve(result, sequence_ids=ids, token_ids=tokens, logprobs=[])
