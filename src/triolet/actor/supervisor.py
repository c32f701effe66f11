"""How actors live and die: the service nursery, bounded shields, restart budgets.

The body of an engine is cancelled first and its servants last (tricycle's service nursery),
so that whatever the body does on its way out can still be served.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Generator
from typing import TypeVar, cast

import tricycle
import trio

E = TypeVar("E", bound=Exception)

BACKOFF_FIRST_S = 0.1
"""Pause before the first restart: enough for a dead process to be reaped."""
BACKOFF_MAX_S = 10.0
"""Longest pause: a client that waits for its answer should still believe in it."""


@contextlib.contextmanager
def bounded_shield(seconds: float, reason: str) -> Generator[trio.CancelScope]:
    """Let clean-up wait in spite of cancellation, for at most this long.

    Args:
        seconds: The bound. Afterwards the block is cancelled.
        reason: Why the wait must not be cut short; for readers and traces.

    Yields:
        The scope; `cancelled_caught` tells that the bound was reached.
    """
    assert reason
    with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds) as scope:
        yield scope


@contextlib.asynccontextmanager
async def open_service_nursery() -> AsyncGenerator[trio.Nursery]:
    """A nursery whose children are cancelled only after its body has been unwound.

    An exception of the body leaves it as it is, not in a group: that there is a nursery
    is nobody's business outside. That holds too if the block is cancelled at the same time.
    """
    try:
        async with tricycle.open_service_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        _, others = group.split(trio.Cancelled)
        error = only_exception(group if others is None else others)
        raise error from error.__cause__


def first_exception(group: BaseExceptionGroup[E]) -> E:
    """One of the exceptions in a group, where any tells enough."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return cast("E", error)


def only_exception(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception in a group of one, however deeply; otherwise the group itself."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return group if isinstance(error, BaseExceptionGroup) else error


class RestartBudget:
    """How often something may be restarted, and how long to pause before.

    The pause doubles with every restart inside the window.

    Args:
        limit: Restarts allowed in the window.
        window_s: Length of the window in seconds.
    """

    def __init__(self, limit: int, window_s: float) -> None:
        self._limit = limit
        self._window_s = window_s
        self._times: deque[float] = deque()
        self.restarts = 0

    def spend(self, now: float) -> float | None:
        """Ask for one restart.

        Returns:
            Seconds to pause before it, or None when the budget is used up.
        """
        while self._times and self._times[0] <= now - self._window_s:
            self._times.popleft()
        if len(self._times) >= self._limit:
            return None
        self._times.append(now)
        self.restarts += 1
        return min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** (len(self._times) - 1))
