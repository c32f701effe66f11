"""Requests whose scope was left: how a request ends without a message.

A message may have to wait for a place, and an acknowledgement may never come. A mark does
neither: leaving a scope puts it down synchronously, and the scheduler takes all marks up
immediately before it decides a step, so no step decided later contains the request (G1).
"""

from __future__ import annotations

from collections.abc import Callable

from triolet.request import RequestId


class EndMarks:
    """A set of request ids, put down by whoever ends one and taken up by the scheduler.

    Args:
        wake: Called at each mark, so that blocks are free even when no step is coming.

    Its size is bounded by the number of live requests: each is marked at most once.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._marked: list[RequestId] = []

    def mark(self, request_id: RequestId) -> None:
        """The request is over. Synchronous, never fails."""
        self._marked.append(request_id)
        self._wake()

    @property
    def marked(self) -> tuple[RequestId, ...]:
        """The marks that lie there now."""
        return tuple(self._marked)

    def drain(self) -> list[RequestId]:
        """Take all marks up."""
        marked, self._marked = self._marked, []
        return marked
