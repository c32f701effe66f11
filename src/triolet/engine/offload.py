"""Where work goes that would block the run loop: one seam, three implementations.

`ThreadOffload` for real use, `InlineOffload` for simulations (real threads have no virtual
time). Anything that can take more than about a millisecond of CPU goes through here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import trio

R = TypeVar("R")


class Offload(Protocol):
    """Runs a synchronous function without holding up the loop."""

    async def run(
        self, function: Callable[[], R], *, on_abandoned: Callable[[], None] | None = None
    ) -> R:
        """Run `function` elsewhere and return what it returns. A checkpoint.

        Cancelled, it returns at once and the function goes on for nobody; `on_abandoned` is
        then called in the trio thread when it has really ended, never otherwise. So what the
        function costs can stay accounted for as long as it runs.
        """
        ...


class ThreadOffload:
    """Runs functions in trio's worker threads, a bounded number at a time.

    Args:
        threads: How many at a time. Abandoned ones count until they end.
    """

    def __init__(self, threads: int) -> None:
        self._limiter = trio.CapacityLimiter(threads)

    async def run(
        self, function: Callable[[], R], *, on_abandoned: Callable[[], None] | None = None
    ) -> R:
        """See `Offload.run`."""
        job = _Job(function, on_abandoned, trio.lowlevel.current_trio_token())
        try:
            return await trio.to_thread.run_sync(job, abandon_on_cancel=True, limiter=self._limiter)
        except trio.Cancelled:
            job.abandon()
            raise


class _Job(Generic[R]):
    """One function on its way through a thread.

    Whether it has ended and whether it was abandoned are both decided in the trio thread, in
    either order; whichever comes second tells, once.
    """

    def __init__(
        self,
        function: Callable[[], R],
        on_abandoned: Callable[[], None] | None,
        token: trio.lowlevel.TrioToken,
    ) -> None:
        self._function = function
        self._on_abandoned = on_abandoned
        self._token = token
        self._started = False
        self._ended = False
        self._abandoned = False
        self._told = False

    def __call__(self) -> R:
        self._started = True
        try:
            return self._function()
        finally:
            if self._on_abandoned is not None:
                with contextlib.suppress(trio.RunFinishedError):  # nobody left to account to
                    self._token.run_sync_soon(self._end)

    def _end(self) -> None:
        """In the trio thread: the function has ended."""
        self._ended = True
        if self._abandoned:
            self._tell()

    def abandon(self) -> None:
        """In the trio thread: nobody waits any more."""
        self._abandoned = True
        # One that has not started was waiting for a thread and will not start. (Or it starts
        # this very moment: then it is told a moment early, and only once.)
        if self._ended or not self._started:
            self._tell()

    def _tell(self) -> None:
        if self._on_abandoned is not None and not self._told:
            self._told = True
            self._on_abandoned()


class InlineOffload:
    """Runs functions on the spot, for simulations on a virtual clock."""

    async def run(
        self, function: Callable[[], R], *, on_abandoned: Callable[[], None] | None = None
    ) -> R:
        """See `Offload.run`. A checkpoint before the function, so that it can be cancelled there."""
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            if on_abandoned is not None:
                on_abandoned()
            raise
        return function()
