"""Which request runs out of time next."""

from __future__ import annotations

import heapq
import math

from triolet.request import RequestId, Timeouts

TOTAL, QUEUE, FIRST_TOKEN = "total", "queue", "first_token"


class Deadlines:
    """Deadlines of live requests, earliest first.

    A deadline that no longer matters (its request started, or is gone) stays until its time
    comes and is then skipped by the caller: at most three per request, bounded by admission.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, RequestId, str]] = []

    def add(self, request_id: RequestId, arrival_time: float, timeouts: Timeouts) -> None:
        """Take up the deadlines of a request."""
        for kind, seconds in (
            (TOTAL, timeouts.total),
            (QUEUE, timeouts.queue),
            (FIRST_TOKEN, timeouts.first_token),
        ):
            if seconds is not None:
                heapq.heappush(self._heap, (arrival_time + seconds, request_id, kind))

    @property
    def next_time(self) -> float:
        """When the next one passes; infinity if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def pop_passed(self, now: float) -> list[tuple[RequestId, str]]:
        """Take those that have passed: (request, kind), earliest first."""
        passed: list[tuple[RequestId, str]] = []
        while self._heap and self._heap[0][0] <= now:
            _, request_id, kind = heapq.heappop(self._heap)
            passed.append((request_id, kind))
        return passed
