"""The Scheduler actor: drain the inbox, drain the end marks, decide, send.

The order matters and is the heart of G1: everything the inbox holds is applied first, then
the end marks are taken up, and a step is decided in the same synchronous stretch. So no step
contains a request whose scope was left before the decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import attrs
import trio

from triolet.actor.channel import Channel, ChannelStatistics, Outlet
from triolet.actor.end_marks import EndMarks
from triolet.actor.faultpoint import FaultPoints
from triolet.messages.dispatcher_to_scheduler import SinkFailed, StopMatched
from triolet.messages.runner_to_scheduler import (
    BatchResult,
    RunnerFailed,
    RunnerReady,
)
from triolet.messages.scheduler_to_dispatcher import SchedulerFact, StepFacts
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.messages.tracker_to_scheduler import Admit
from triolet.scheduler.scheduler import Scheduler
from triolet.scheduler.statistics import RequestStatistics, SchedulerStatistics

Message = Admit | StopMatched | SinkFailed | BatchResult | RunnerReady | RunnerFailed


@attrs.frozen
class StepLoopStatistics:
    """A moment in the life of the step loop.

    Attributes:
        inbox: Its channel.
        runner_ready: Whether batches can be sent.
        last_step_time: When the last one ended, on trio's clock.
        busy_since: Since when there has been work without a finished step.
        scheduler: What it decides on.
    """

    inbox: ChannelStatistics
    runner_ready: bool
    last_step_time: float | None
    busy_since: float | None
    scheduler: SchedulerStatistics | None


class StepLoop:
    """Drives the scheduler: one turn per wake-up.

    Args:
        inbox: From tracker, dispatcher and runner.
        runner: The runner's inbox; the credit is a step in flight.
        dispatcher: The dispatcher's inbox.
        marks: Requests whose scope was left.
        make_scheduler: Called once, when the runner is ready for the first time.
        faults: Fault points.
        observe_step: Told how many tokens each step dealt with: computed ones of prompts, and
            sampled ones.
    """

    def __init__(
        self,
        inbox: Channel[Message],
        runner: Outlet[ScheduledBatch],
        dispatcher: Outlet[StepFacts],
        marks: EndMarks,
        make_scheduler: Callable[[RunnerReady], Scheduler],
        faults: FaultPoints,
        observe_step: Callable[[int], None],
    ) -> None:
        self.inbox = inbox
        self._runner = runner
        self._dispatcher = dispatcher
        self._marks = marks
        self._make_scheduler = make_scheduler
        self._faults = faults
        self._observe_step = observe_step
        self._tokens_observed = 0
        self._scheduler: Scheduler | None = None
        self._ready: trio.Event = trio.Event()
        self._runner_ready = False
        self._incarnation = 0
        self._last_step_time: float | None = None
        self._busy_since: float | None = None

    async def wait_ready(self) -> Scheduler:
        """Wait until the runner was ready for the first time. A checkpoint."""
        await self._ready.wait()
        assert self._scheduler is not None
        return self._scheduler

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            facts: list[SchedulerFact] = []
            for message in await self.inbox.receive_all():
                self._apply(message, facts)
            self._decide(facts)
            if facts:
                self._dispatcher.send_nowait(StepFacts(facts))

    @property
    def scheduler(self) -> Scheduler | None:
        """What it drives; None before the runner was ready for the first time."""
        return self._scheduler

    def statistics(self) -> StepLoopStatistics:
        """A moment in its life."""
        return StepLoopStatistics(
            inbox=self.inbox.statistics(),
            runner_ready=self._runner_ready,
            last_step_time=self._last_step_time,
            busy_since=self._busy_since,
            scheduler=None if self._scheduler is None else self._scheduler.statistics(),
        )

    def requests(self) -> list[RequestStatistics]:
        """Every request the scheduler holds: O(live), for people."""
        return [] if self._scheduler is None else self._scheduler.requests()

    def _apply(self, message: Message, facts: list[SchedulerFact]) -> None:
        if isinstance(message, RunnerReady):
            self._runner_is_ready(message)
            return
        scheduler = self._scheduler
        assert scheduler is not None, "nothing is admitted before the runner is ready"
        now = trio.current_time()
        match message:
            case Admit(request):
                scheduler.add(request, now)
            case StopMatched(request_id, index, num_output_tokens):
                scheduler.stop_matched(request_id, index, num_output_tokens)
            case SinkFailed(request_id):
                scheduler.end(request_id)
            case BatchResult():
                self._take_result(scheduler, message, now, facts)
            case RunnerFailed(incarnation):
                # A life that died while loading was never known here.
                if incarnation == self._incarnation:
                    self._runner_ready = False
                    scheduler.runner_lost(now)
            case _:
                assert_never(message)

    def _runner_is_ready(self, ready: RunnerReady) -> None:
        self._incarnation = ready.incarnation
        self._runner_ready = True
        if self._scheduler is None:
            self._scheduler = self._make_scheduler(ready)
        self._scheduler.runner_restored(ready.info, ready.incarnation)
        self._ready.set()

    def _take_result(
        self, scheduler: Scheduler, result: BatchResult, now: float, facts: list[SchedulerFact]
    ) -> None:
        if result.incarnation == self._incarnation:
            self._last_step_time = now
            self._busy_since = now
        self._faults.hit("scheduler.before_update")
        # A scope left since the step was sent: its rows are void (and counted as dropped).
        # The marks stay: the admission of a marked request may be the next message.
        for request_id in self._marks.marked:
            scheduler.end(request_id)
        facts.extend(scheduler.update(result, now))
        tokens = scheduler.tokens_processed
        if tokens > self._tokens_observed:
            self._observe_step(tokens - self._tokens_observed)
            self._tokens_observed = tokens

    def _decide(self, facts: list[SchedulerFact]) -> None:
        """Send as many steps as the scheduler gives; their number in flight is its credit."""
        scheduler = self._scheduler
        if scheduler is None:
            return
        self._faults.hit("scheduler.before_schedule")
        for request_id in self._marks.drain():
            scheduler.end(request_id)
        while (batch := scheduler.schedule(trio.current_time())) is not None:
            self._runner.send_nowait(batch)
            self._faults.hit("scheduler.after_send")
        facts.extend(scheduler.take_facts())
        if not scheduler.has_work:
            self._busy_since = None
        elif self._busy_since is None:
            self._busy_since = trio.current_time()
