"""The two sets of sequences that the scheduler serves in order of their keys."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Iterator

from triolet.scheduler.policy import SequenceKey
from triolet.scheduler.sequence import Sequence


class WaitingQueue:
    """Sequences that could run if there were room, first by key first.

    O(log n) each; a removed sequence leaves a tombstone, and when tombstones are the
    majority they are swept, so memory is bounded by twice what waits.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[SequenceKey, int, Sequence]] = []
        self._entry: dict[Sequence, int] = {}
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._entry)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._entry

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._entry)

    def push(self, sequence: Sequence) -> None:
        """Add a sequence that is not in the queue."""
        assert sequence not in self._entry, sequence.sequence_id
        self._num_pushed += 1
        self._entry[sequence] = self._num_pushed
        heapq.heappush(self._heap, (sequence.key, self._num_pushed, sequence))

    def peek(self) -> Sequence | None:
        """The first by key."""
        while self._heap:
            _, number, sequence = self._heap[0]
            if self._entry.get(sequence) == number:
                return sequence
            heapq.heappop(self._heap)
        return None

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is in the queue."""
        del self._entry[sequence]
        if len(self._heap) > 2 * len(self._entry) + 16:
            self._heap = [e for e in self._heap if self._entry.get(e[2]) == e[1]]
            heapq.heapify(self._heap)

    def check_integrity(self) -> None:
        """Assert that what is in the queue can be found."""
        alive = {
            sequence for _, number, sequence in self._heap if self._entry.get(sequence) == number
        }
        assert alive == set(self._entry)
        assert len(self._heap) <= 2 * len(self._entry) + 17, "tombstones pile up"


def _key(sequence: Sequence) -> SequenceKey:
    return sequence.key


class RunningSet:
    """Sequences that hold blocks, sorted by key. At most a few hundred: O(n) moves are cheap."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def snapshot(self) -> list[Sequence]:
        """All of them, first by key first, in a list of its own."""
        return self._sequences.copy()

    def from_last(self) -> Iterator[Sequence]:
        """All of them, last by key first."""
        return reversed(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Add a sequence."""
        bisect.insort(self._sequences, sequence, key=_key)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out."""
        index = bisect.bisect_left(self._sequences, sequence.key, key=_key)
        assert self._sequences[index] is sequence, "not in the running set"
        del self._sequences[index]

    def clear(self) -> list[Sequence]:
        """Take all of them out."""
        sequences, self._sequences = self._sequences, []
        return sequences

    def check_integrity(self) -> None:
        """Assert the order."""
        keys = [sequence.key for sequence in self._sequences]
        assert all(a < b for a, b in itertools.pairwise(keys)), "out of order"
