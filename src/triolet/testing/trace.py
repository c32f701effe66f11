"""What happened in a simulated run, event by event; its digest; and where two runs part.

An event is semantic: a state of a request, a step and what is in it, a piece of output, a
fault. Tasks, addresses and real time are not in it, so that runs of two Pythons compare.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import zip_longest

import attrs
from typing_extensions import override

DIGITS = 9
"""Of virtual seconds: nanoseconds, well above the rounding of sums of floats."""


@attrs.frozen
class Event:
    """One thing that happened.

    Attributes:
        time: Virtual seconds since the run began, rounded.
        kind: "state", "step", "delta", "end", "fault", "blocks" or "engine".
        detail: Plain values: str, int, float, None and tuples of them.
    """

    time: float
    kind: str
    detail: tuple[object, ...]

    @override
    def __str__(self) -> str:
        return f"{self.time:12.6f} {self.kind:6} {' '.join(map(str, self.detail))}"


class Trace:
    """The events of one run, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, time: float, kind: str, *detail: object) -> None:
        """Note an event."""
        self.events.append(Event(round(time, DIGITS), kind, detail))

    def digest(self) -> str:
        """Sixteen hexadecimal digits that are equal for equal runs."""
        state = hashlib.blake2b(digest_size=8)
        for event in self.events:
            state.update(repr((event.time, event.kind, event.detail)).encode())
        return state.hexdigest()


@attrs.frozen
class Divergence:
    """The first event in which two runs differ; None where one has ended."""

    position: int
    one: Event | None
    other: Event | None

    @override
    def __str__(self) -> str:
        return f"event {self.position}:\n  one:   {self.one}\n  other: {self.other}"


def diff(one: Sequence[Event], other: Sequence[Event]) -> Divergence | None:
    """Where two runs part; None if they are equal."""
    for position, (a, b) in enumerate(zip_longest(one, other)):
        if a != b:
            return Divergence(position, a, b)
    return None
