"""Every live request: its state, its credit, its deadlines, and how it ended.

An entry is made when a request is submitted and forgotten when its scope is left. What ends
it is decided once, by the first call of `end`; later ones are told so and change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import attrs

from triolet.errors import InternalError
from triolet.output import Sink
from triolet.request import GenerationRequest, RequestId
from triolet.tracker.admission import Reservation
from triolet.tracker.request_state import RequestState, check_transition


@attrs.define(eq=False)
class RequestEntry:
    """One live request.

    Attributes:
        request: What was submitted.
        sink: Where its outputs go.
        reservation: Its credit.
        state: Where it is in its life.
        cause: Why it ended, in a word, once it has.
        start_time: When it got its first place in a step, on trio's clock.
    """

    request: GenerationRequest
    sink: Sink
    reservation: Reservation
    state: RequestState = RequestState.RESERVED
    cause: str | None = None
    start_time: float | None = None

    @property
    def request_id(self) -> RequestId:
        """Its id."""
        return self.request.request_id

    def advance(self, state: RequestState) -> None:
        """Go on to a state that is not final."""
        assert not state.is_final
        self.state = check_transition(self.state, state)


class Registry:
    """All live requests of one engine.

    Args:
        on_end: Called once per request, when it ends: puts its end mark down.
    """

    def __init__(self, on_end: Callable[[RequestEntry], None]) -> None:
        self._entries: dict[RequestId, RequestEntry] = {}
        self._on_end = on_end
        self.ended: Counter[tuple[RequestState, str]] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[RequestEntry]:
        return iter(self._entries.values())

    def get(self, request_id: RequestId) -> RequestEntry | None:
        """The entry, or None if there is no such live request."""
        return self._entries.get(request_id)

    def open(self, entry: RequestEntry) -> None:
        """Take up a new request."""
        if entry.request_id in self._entries:
            raise InternalError(f"request id {entry.request_id} is in use")
        self._entries[entry.request_id] = entry

    def end(self, entry: RequestEntry, state: RequestState, cause: str) -> bool:
        """End a request, if nothing has ended it yet.

        Returns:
            Whether this call ended it.
        """
        assert state.is_final
        if entry.state.is_final:
            return False
        entry.state = check_transition(entry.state, state)
        entry.cause = cause
        self.ended[state, cause] += 1
        self._on_end(entry)
        return True

    def forget(self, entry: RequestEntry, now: float) -> None:
        """Drop a request whose scope was left, and give its credit back. Idempotent."""
        assert entry.state.is_final
        self._entries.pop(entry.request_id, None)
        entry.reservation.release(now)
