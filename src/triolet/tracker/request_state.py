"""The states of one request, as a table: what is not in it cannot happen.

    RESERVED --> QUEUED --> RUNNING --> FINISHED
        |           |          |----> FAILED
        |           |          '----> CANCELLED
        '-----------'---------------> FAILED, CANCELLED

A request is RESERVED while its prompt is tokenized and its grammar compiled, QUEUED from its
submission on, RUNNING from its first place in a step on (a preempted request stays RUNNING:
its consumer has seen it start). The last three are final.
"""

from __future__ import annotations

import enum

from triolet.errors import InternalError


class RequestState(enum.StrEnum):
    """Where a request is in its life."""

    RESERVED = "reserved"
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing can follow."""
        return not TRANSITIONS[self]


TRANSITIONS: dict[RequestState, frozenset[RequestState]] = {
    RequestState.RESERVED: frozenset(
        {RequestState.QUEUED, RequestState.FAILED, RequestState.CANCELLED}
    ),
    RequestState.QUEUED: frozenset(
        {
            RequestState.RUNNING,
            # A stop string can already be complete in a resumed prefix.
            RequestState.FINISHED,
            RequestState.FAILED,
            RequestState.CANCELLED,
        }
    ),
    RequestState.RUNNING: frozenset(
        {RequestState.FINISHED, RequestState.FAILED, RequestState.CANCELLED}
    ),
    RequestState.FINISHED: frozenset(),
    RequestState.FAILED: frozenset(),
    RequestState.CANCELLED: frozenset(),
}


def check_transition(before: RequestState, after: RequestState) -> RequestState:
    """Return `after`.

    Raises:
        InternalError: The table does not allow the step; nothing has changed.
    """
    if after not in TRANSITIONS[before]:
        raise InternalError(f"a request cannot go from {before} to {after}")
    return after
