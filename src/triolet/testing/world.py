"""What one simulated run is made of, as its clients, its nemesis and its checks share it."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import attrs
import trio
from trio.testing import MockClock
from typing_extensions import override

from triolet.config import EngineConfig
from triolet.engine.engine import Engine
from triolet.engine.insides import EngineInsides
from triolet.errors import TrioletError
from triolet.scheduler.scheduler import Scheduler
from triolet.testing.http import AsgiClient
from triolet.testing.scenario import Scenario
from triolet.testing.simulated_transport import SimulatedTransport
from triolet.testing.trace import Trace
from triolet.tracker.registry import RequestEntry
from triolet.tracker.request_state import RequestState

if TYPE_CHECKING:
    from triolet.testing.clients import SimulatedClient

VIOLATIONS_MAX = 20
"""More than this says nothing more."""

UNSTARTED = "unstarted"
"""Where a client is that has no request yet."""


@attrs.frozen
class Violation:
    """A broken guarantee.

    Attributes:
        check: The check that found it.
        message: What was found.
        tick: The scheduler tick after which it was found.
        time: Virtual seconds since the run began.
    """

    check: str
    message: str
    tick: int
    time: float

    @override
    def __str__(self) -> str:
        return f"{self.check} at tick {self.tick} ({self.time:.6f} s): {self.message}"


@attrs.define
class Excuses:
    """What was done on purpose, and so excuses an end that would be a violation otherwise.

    Attributes:
        actors_crashed: Actors into which an exception was thrown.
        drained: The engine was drained.
        closed: The block of the engine was left while clients were there.
        service_cancelled: The scope around the engine was cancelled.
        load_failed: Loading was made to fail.
        clock_jumped: Time was not what it seemed.
        cancelled_labels: Clients whose request was cancelled by id.
    """

    actors_crashed: list[str] = attrs.field(factory=list[str])
    drained: bool = False
    closed: bool = False
    service_cancelled: bool = False
    load_failed: bool = False
    clock_jumped: bool = False
    cancelled_labels: set[str | None] = attrs.field(factory=set["str | None"])


@attrs.define(eq=False)
class World:
    """One run.

    Attributes:
        scenario: What is played.
        config: Of its engine.
        seed: Of everything that is drawn.
        clock: The virtual clock.
        trace: What happened.
        clients: Everyone, by number.
        excuses: What was done on purpose.
        counts: How often each fault struck, each point was passed, each state followed
            another; keys are "fault X", "point X", "state X -> Y", "cancelled in X", "end X",
            "ended X by Y", "crashed X" and "requests".
        violations: What must not happen and did.
        service_scope: Around the engine as a whole.
        body_scope: Inside the block of the engine.
        opened: Set when there is an engine, or never will be.
        all_left: Set when every client is gone.
        engine: The engine, while it is open.
        insides: Its parts.
        transport: Its worker.
        http: A client of the API over it, in memory.
        start_time: When the run began, on trio's clock.
        open_time: When the engine had opened, on trio's clock.
        tick: Scheduler ticks so far.
        death: What opening or leaving the engine raised.
        max_model_len: Of the engine.
        final_states: How requests ended, by the label of their client.
        logged_errors: Messages logged as errors.
    """

    scenario: Scenario
    config: EngineConfig
    seed: int
    clock: MockClock
    trace: Trace = attrs.field(factory=Trace)
    clients: list[SimulatedClient] = attrs.field(factory=list["SimulatedClient"])
    excuses: Excuses = attrs.field(factory=Excuses)
    counts: Counter[str] = attrs.field(factory=Counter[str])
    violations: list[Violation] = attrs.field(factory=list[Violation])
    service_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    body_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    opened: trio.Event = attrs.field(factory=trio.Event)
    all_left: trio.Event = attrs.field(factory=trio.Event)
    engine: Engine | None = None
    insides: EngineInsides | None = None
    transport: SimulatedTransport | None = None
    http: AsgiClient | None = None
    start_time: float = 0.0
    open_time: float = 0.0
    tick: int = 0
    death: TrioletError | None = None
    max_model_len: int = 0
    final_states: dict[str, RequestState] = attrs.field(factory=dict[str, "RequestState"])
    logged_errors: list[str] = attrs.field(factory=list[str])

    def rng(self, purpose: str) -> random.Random:
        """A generator of its own for each purpose, so that one draws nothing from another."""
        return random.Random(f"{self.seed} {purpose}")

    @property
    def now(self) -> float:
        """Virtual seconds since the run began."""
        return trio.current_time() - self.start_time

    @property
    def scheduler(self) -> Scheduler | None:
        """The engine's scheduler, once it has loaded."""
        return None if self.insides is None else self.insides.step_loop.scheduler

    def note(self, kind: str, *detail: object) -> None:
        """Note an event in the trace."""
        self.trace.add(self.now, kind, *detail)

    def count(self, what: str) -> None:
        """Count something; see `counts`."""
        self.counts[what] += 1

    def violate(self, check: str, message: str) -> None:
        """Note a broken guarantee."""
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(check, message, self.tick, self.now))

    def cancellable(self) -> list[SimulatedClient]:
        """Clients that are there and have not been told to leave."""
        return [client for client in self.clients if client.is_present]

    def leave(self, client: SimulatedClient, why: str) -> None:
        """Make a client leave now, and count in which state that found its request."""
        phase = self.phase_of(client)
        self.count(f"cancelled in {phase}")
        self.note("fault", why, client.number, phase)
        client.leave(why)

    def phase_of(self, client: SimulatedClient) -> str:
        """Where a client's request is, finer than its state: what the scheduler makes of it."""
        entry = self.entry_of(client)
        if entry is None:
            if client.is_streaming:
                return "ended"
            return RequestState.RESERVED.value if client.is_entering else UNSTARTED
        if entry.state in (RequestState.QUEUED, RequestState.RUNNING) and self.scheduler:
            for request in self.scheduler.requests():
                if request.request_id == entry.request_id:
                    return request.phase
        return entry.state.value

    def entry_of(self, client: SimulatedClient) -> RequestEntry | None:
        """The live request of a client."""
        if self.insides is None:
            return None
        for entry in self.insides.registry:
            if entry.request.label == client.label:
                return entry
        return None
