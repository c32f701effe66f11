"""Finds the request that brings the runner down, and lets nobody else pay for it.

* The requests of the steps in flight at a death are suspects.
* A suspect is cleared when, after the restart, it is computed again as far as the step that
  died would have taken it. (A step that only computed an early chunk of its prompt proves
  nothing about a later one.)
* After a second death before all suspects are cleared, they run one by one.
* The one that runs alone when the runner dies then is poison.
"""

from __future__ import annotations

from collections.abc import Iterable

from triolet.request import RequestId, SequenceId

DEATHS_BEFORE_ISOLATION = 2
"""Deaths in a row after which suspects run alone: one may be bad luck."""


class Suspects:
    """Requests that may have killed the runner."""

    def __init__(self) -> None:
        self._targets: dict[RequestId, dict[SequenceId, int]] = {}
        self._deaths_in_row = 0

    def __len__(self) -> int:
        return len(self._targets)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._targets

    @property
    def are_isolated(self) -> bool:
        """Whether suspects must run one by one."""
        return self._deaths_in_row >= DEATHS_BEFORE_ISOLATION and bool(self._targets)

    @property
    def request_ids(self) -> tuple[RequestId, ...]:
        """All suspects."""
        return tuple(self._targets)

    def runner_died(self, rows: Iterable[tuple[RequestId, SequenceId, int]]) -> RequestId | None:
        """The runner died with these rows in flight: (request, sequence, tokens computed after).

        Returns:
            The request that is proven to be poison, if one is; it is no suspect any more.
        """
        was_isolated = self.are_isolated
        requests: set[RequestId] = set()
        for request_id, sequence_id, end in rows:
            requests.add(request_id)
            targets = self._targets.setdefault(request_id, {})
            targets[sequence_id] = max(end, targets.get(sequence_id, 0))
        if not requests:
            return None  # It died idle: no request did it.
        self._deaths_in_row += 1
        if was_isolated:
            assert len(requests) == 1, f"{len(requests)} requests ran in isolation"
            (poison,) = requests
            self.dismiss(poison)
            return poison
        return None

    def progressed(self, request_id: RequestId, sequence_id: SequenceId, confirmed: int) -> None:
        """A step ended after which this many tokens of the sequence are computed."""
        targets = self._targets.get(request_id)
        if targets is not None and confirmed >= targets.get(sequence_id, confirmed + 1):
            self.sequence_ended(request_id, sequence_id)

    def sequence_ended(self, request_id: RequestId, sequence_id: SequenceId) -> None:
        """A sequence of the request is gone, or cleared."""
        targets = self._targets.get(request_id)
        if targets is not None:
            targets.pop(sequence_id, None)
            if not targets:
                self.dismiss(request_id)

    def dismiss(self, request_id: RequestId) -> None:
        """The request ended, or is cleared; unknown ids are fine."""
        self._targets.pop(request_id, None)
        if not self._targets:
            self._deaths_in_row = 0
