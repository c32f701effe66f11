"""Every channel of one engine, its type and its bound, in one table.

| channel into | carries | bound, and why it is enough |
|---|---|---|
| tracker | Submit | live requests: admission has reserved a place for each |
| scheduler | Admit | one per live request |
|           | StopMatched, SinkFailed | one per output of a live request |
|           | BatchResult | steps in flight |
|           | RunnerReady, RunnerFailed | one of each, with one spare: a life begins and ends |
| runner | ScheduledBatch | steps in flight, twice: those of a dead life may still be there |
| dispatcher | StepFacts | two per slice of its turn, and a few: it takes all each time, and |
|            |           | no task of the loop runs twice while it waits to run once |

Ending a request needs no channel: see `actor/end_marks.py`.
"""

from __future__ import annotations

import attrs

from triolet.actor.channel import Channel
from triolet.config import EngineConfig
from triolet.dispatcher.actor import OUTPUTS_PER_SLICE
from triolet.messages.dispatcher_to_scheduler import SinkFailed, StopMatched
from triolet.messages.engine_to_tracker import Submit
from triolet.messages.runner_to_scheduler import BatchResult, RunnerFailed, RunnerReady
from triolet.messages.scheduler_to_dispatcher import StepFacts
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.messages.tracker_to_scheduler import Admit
from triolet.sampling_params import N_MAX

STEPS_IN_FLIGHT_MAX = 4
"""More than any runner holds."""

DISPATCHER_SLACK = 8
"""Messages to the dispatcher beyond two per slice: a turn of the scheduler says one, and it has
at most two turns before a dispatcher that is woken has one."""

SchedulerMessage = Admit | StopMatched | SinkFailed | BatchResult | RunnerReady | RunnerFailed


@attrs.frozen
class Wiring:
    """The inboxes of one engine."""

    tracker: Channel[Submit]
    scheduler: Channel[SchedulerMessage]
    runner: Channel[ScheduledBatch]
    dispatcher: Channel[StepFacts]

    @classmethod
    def of(cls, config: EngineConfig) -> Wiring:
        """Open every channel."""
        live = config.scheduler.max_live_requests
        slices = -(-config.scheduler.max_num_seqs // OUTPUTS_PER_SLICE)
        return cls(
            tracker=Channel("tracker", live),
            scheduler=Channel("scheduler", live * (1 + N_MAX) + STEPS_IN_FLIGHT_MAX + 4),
            runner=Channel("runner", 2 * STEPS_IN_FLIGHT_MAX),
            dispatcher=Channel("dispatcher", DISPATCHER_SLACK + 2 * slices),
        )
