"""Named points at which a test may make things go wrong.

In production a point is one look-up in an empty dictionary. `triolet.testing` arms points on
a schedule; `docs/reference/faults.md` lists them, and a test checks that each is hit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

POINTS: Final = frozenset(
    {
        "tracker.admit",
        "scheduler.before_schedule",
        "scheduler.after_send",
        "scheduler.before_update",
        "dispatcher.before_apply",
        "runner.before_submit",
        "runner.after_result",
        "engine.after_reserve",
        "engine.before_submit",
    }
)
"""Every point there is."""


class FaultPoints:
    """The fault points of one engine."""

    def __init__(self) -> None:
        self._armed: dict[str, Callable[[], None]] = {}

    def arm(self, point: str, action: Callable[[], None]) -> None:
        """Call `action` whenever `point` is passed; it may raise."""
        assert point in POINTS, point
        self._armed[point] = action

    def disarm(self, point: str) -> None:
        """Make `point` harmless again."""
        self._armed.pop(point, None)

    def hit(self, point: str) -> None:
        """Pass a point."""
        if self._armed and (action := self._armed.get(point)) is not None:
            action()
