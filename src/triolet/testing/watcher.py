"""Sees every tick of trio's scheduler: counts it, checks after it, and strikes before it.

A tick is one step of one task, from one checkpoint to the next: everything that can be
observed, or cancelled, is between two ticks.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Literal

import attrs
import trio
from typing_extensions import override

from triolet.errors import ConfigError
from triolet.request import RequestId
from triolet.testing.checks import TIME_TOLERANCE_S, TURN_CHECKS, run_checks
from triolet.testing.determinism import throw_at_next_step
from triolet.testing.nemesis import InjectedCrash
from triolet.testing.world import World
from triolet.tracker.registry import RequestEntry
from triolet.tracker.request_state import TRANSITIONS, RequestState

ACTOR_PREFIX = "triolet "
"""How `open_engine` names the tasks of its actors."""
SCHEDULER_TASK = ACTOR_PREFIX + "scheduler"

NURSERY_EXIT = "_nested_child_finished"
"""Where trio lets a task wait for its children."""

InterventionKind = Literal["cancel", "crash", "close", "abort"]


@attrs.frozen
class Intervention:
    """Something done before one tick of a run.

    Attributes:
        kind: "cancel" makes a client leave; "crash" raises in the actor that is about to run;
            "close" leaves the block of the engine; "abort" cancels the scope around it.
        tick: Before which tick, from 0.
        client: Whom to cancel.
    """

    kind: InterventionKind
    tick: int
    client: int | None = None

    @override
    def __str__(self) -> str:
        whom = "" if self.client is None else f"/{self.client}"
        return f"{self.kind}@{self.tick}{whom}"

    @classmethod
    def parse(cls, text: str) -> Intervention:
        """Read what `str` writes, such as "cancel@17/3".

        Raises:
            ConfigError: It is not that.
        """
        kind, _, rest = text.partition("@")
        tick, _, client = rest.partition("/")
        kinds: dict[str, InterventionKind] = {
            "cancel": "cancel",
            "crash": "crash",
            "close": "close",
            "abort": "abort",
        }
        if kind not in kinds or not tick.isdecimal() or not (client.isdecimal() or not client):
            raise ConfigError(
                f"{text!r} is no intervention: expected KIND@TICK or cancel@TICK/CLIENT, with "
                f"one of {', '.join(kinds)}",
                param="replay",
            )
        return cls(kinds[kind], int(tick), int(client) if client else None)


class Watcher(trio.abc.Instrument):
    """The instrument of one run.

    Args:
        world: The run.
        interventions: What to do, before which tick.
        record_targets: Note at each tick whom a sweep could strike.
    """

    def __init__(
        self, world: World, interventions: Sequence[Intervention], record_targets: bool
    ) -> None:
        self._world = world
        self._interventions: dict[int, list[Intervention]] = {}
        for intervention in interventions:
            self._interventions.setdefault(intervention.tick, []).append(intervention)
        self._record_targets = record_targets
        self._states: dict[RequestId, RequestState] = {}
        self._turns = 0
        self.targets: list[tuple[tuple[int, ...], str | None]] = []
        self.is_alive = True

    @override
    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Strike."""
        self.is_alive = False
        world = self._world
        if self._record_targets:
            present = tuple(client.number for client in world.cancellable())
            self.targets.append((present, crashable_actor(task)))
        for intervention in self._interventions.get(world.tick, ()):
            self._intervene(intervention, task)
        world.tick += 1
        self.is_alive = True

    @override
    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Look at what the tick has changed."""
        self.is_alive = False
        world = self._world
        if world.insides is not None:
            self._follow_states()
            turns = world.counts["point scheduler.before_schedule"]
            if task.name == SCHEDULER_TASK and turns != self._turns:
                self._turns = turns
                # A scheduler that crashed in the middle of its turn has left it unfinished.
                if "scheduler" not in world.excuses.actors_crashed:
                    run_checks(world, TURN_CHECKS)
        self.is_alive = True

    def _follow_states(self) -> None:
        world = self._world
        assert world.insides is not None
        states = self._states
        for entry in world.insides.registry:
            before = states.get(entry.request_id)
            if before is entry.state:
                continue
            states[entry.request_id] = entry.state
            if before is None:
                world.count("requests")
                before = RequestState.RESERVED
                if entry.state is before:
                    continue
            world.count(f"state {before} -> {entry.state}")
            world.note("state", entry.request.label, before.value, entry.state.value, entry.cause)
            if not _can_follow(before, entry.state):
                world.violate(
                    "transitions", f"{entry.request_id} went from {before} to {entry.state}"
                )
            if before is RequestState.QUEUED and self._has_tokens(entry.request.label):
                world.violate("transitions", f"{entry.request_id} had tokens and had not started")
            if entry.state.is_final:
                self._note_end(entry)

    def _note_end(self, entry: RequestEntry) -> None:
        world, request = self._world, entry.request
        if request.label is not None:
            world.final_states[request.label] = entry.state
        limit_s = request.timeouts.queue
        if entry.start_time is None or limit_s is None or world.excuses.clock_jumped:
            return
        waited_s = entry.start_time - request.arrival_time
        if waited_s > limit_s + TIME_TOLERANCE_S:
            world.violate(
                "deadlines", f"{entry.request_id} started after {waited_s} s; its limit: {limit_s}"
            )

    def _has_tokens(self, label: str | None) -> bool:
        """Whether a client has tokens; one that started and got some in one tick has not yet."""
        return any(
            output.token_ids
            for client in self._world.clients
            if client.label == label
            for output in client.outputs.values()
        )

    def _intervene(self, intervention: Intervention, task: trio.lowlevel.Task) -> None:
        world = self._world
        match intervention.kind:
            case "cancel":
                assert intervention.client is not None
                client = world.clients[intervention.client]
                if client.is_present:
                    world.leave(client, "swept")
            case "crash":
                actor = crashable_actor(task)
                if actor is not None:
                    world.excuses.actors_crashed.append(actor)
                    world.count(f"crashed {actor}")
                    world.note("fault", "crash", actor)
                    throw_at_next_step(task, InjectedCrash(f"before tick {world.tick}"))
            case "close":
                world.excuses.closed = True
                world.note("fault", "close")
                world.body_scope.cancel()
            case "abort":
                world.excuses.service_cancelled = True
                world.note("fault", "abort")
                world.service_scope.cancel()


def crashable_actor(task: trio.lowlevel.Task) -> str | None:
    """The actor that a task belongs to, if an exception thrown into it now is the actor's."""
    if inspect.getcoroutinestate(task.coro) == inspect.CORO_CREATED:
        return None  # it would die before its first line, where nobody could guard it
    if NURSERY_EXIT in _awaited_functions(task.coro):
        return None  # it waits for its children: only they can raise, and trio relies on that
    at: trio.lowlevel.Task | None = task
    while at is not None:
        if at.name.startswith(ACTOR_PREFIX):
            return at.name.removeprefix(ACTOR_PREFIX)
        at = None if at.parent_nursery is None else at.parent_nursery.parent_task
    return None


def _awaited_functions(coro: object) -> Iterator[str]:
    """Names of the coroutine functions in which a task is suspended, outermost first."""
    while inspect.iscoroutine(coro):
        yield coro.cr_code.co_name
        coro = coro.cr_await


def _can_follow(before: RequestState, after: RequestState) -> bool:
    """Whether one or more steps of the table lead from one state to the other in one tick."""
    reachable = {before}
    while True:
        more = {state for known in reachable for state in TRANSITIONS[known]} - reachable
        if after in more:
            return True
        if not more:
            return False
        reachable |= more
