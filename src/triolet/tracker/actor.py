"""The RequestTracker actor: admits what was submitted, ends what is out of time."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import trio

from triolet.actor.channel import Channel, ChannelStatistics, Outlet
from triolet.actor.faultpoint import FaultPoints
from triolet.errors import DeadlineExceeded, TrioletError
from triolet.messages.engine_to_tracker import Submit
from triolet.messages.tracker_to_scheduler import Admit
from triolet.request import FinishReason, RequestId
from triolet.tracker.admission import Admission, AdmissionStatistics
from triolet.tracker.deadlines import FIRST_TOKEN, QUEUE, TOTAL, Deadlines
from triolet.tracker.registry import Registry, RequestEntry
from triolet.tracker.request_state import RequestState


@attrs.frozen
class TrackerStatistics:
    """A moment in the life of the tracker."""

    inbox: ChannelStatistics
    admission: AdmissionStatistics
    deadlines_passed: int


class RequestTracker:
    """Admits requests to the scheduler and watches their deadlines.

    Args:
        inbox: Submissions.
        scheduler: The scheduler's inbox; the credit is the request's own reservation.
        registry: The live requests.
        admission: Their limits.
        has_tokens: Whether a request has a token already, delivered or held back.
        conclude: Ends the outputs of a request where they are: what is held back is flushed.
        fail: Ends them with an error; nothing more is delivered.
        faults: Fault points.
    """

    def __init__(
        self,
        inbox: Channel[Submit],
        scheduler: Outlet[Admit],
        registry: Registry,
        admission: Admission,
        has_tokens: Callable[[RequestId], bool],
        conclude: Callable[[RequestId, FinishReason], object],
        fail: Callable[[RequestId, TrioletError], object],
        faults: FaultPoints,
    ) -> None:
        self.inbox = inbox
        self._scheduler = scheduler
        self._registry = registry
        self._admission = admission
        self._has_tokens = has_tokens
        self._conclude = conclude
        self._fail = fail
        self._faults = faults
        self._deadlines = Deadlines()
        self._deadlines_passed = 0

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            with trio.move_on_at(self._deadlines.next_time):
                for submit in await self.inbox.receive_all():
                    self._admit(submit)
            for request_id, kind in self._deadlines.pop_passed(trio.current_time()):
                entry = self._registry.get(request_id)
                if entry is not None:
                    self._expire(entry, kind)

    def statistics(self) -> TrackerStatistics:
        """A moment in its life."""
        return TrackerStatistics(
            self.inbox.statistics(), self._admission.statistics(), self._deadlines_passed
        )

    def _admit(self, submit: Submit) -> None:
        self._faults.hit("tracker.admit")
        request = submit.request
        entry = self._registry.get(request.request_id)
        if entry is None or entry.state.is_final:
            return  # its scope was left while the submission was on its way
        self._deadlines.add(request.request_id, request.arrival_time, request.timeouts)
        self._scheduler.send_nowait(Admit(request))

    def _expire(self, entry: RequestEntry, kind: str) -> None:
        """End a request whose deadline passed, unless that deadline was met (G10)."""
        if entry.state.is_final:
            return
        has_tokens = self._has_tokens(entry.request_id)
        met = (kind == QUEUE and entry.start_time is not None) or (
            kind == FIRST_TOKEN and has_tokens
        )
        if met:
            return
        self._deadlines_passed += 1
        timeouts = entry.request.timeouts
        if kind == TOTAL and has_tokens:
            self._registry.end(entry, RequestState.FINISHED, "deadline_total")
            self._conclude(entry.request_id, FinishReason.TIMEOUT)
            return
        limit_s = {
            TOTAL: timeouts.total,
            QUEUE: timeouts.queue,
            FIRST_TOKEN: timeouts.first_token,
        }[kind]
        what = {TOTAL: "finished", QUEUE: "started", FIRST_TOKEN: "produced a token"}[kind]
        error = DeadlineExceeded(
            f"the request had not {what} {limit_s:g} s after its arrival (deadline: {kind})"
        )
        self._registry.end(entry, RequestState.FAILED, f"deadline_{kind}")
        self._fail(entry.request_id, error)
