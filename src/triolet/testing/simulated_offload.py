"""An `Offload` on the virtual clock: what it runs takes time, and goes on when abandoned."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

R = TypeVar("R")


class SimulatedOffload:
    """Runs functions after a while, as a thread would.

    Args:
        nursery: Where abandoned functions go on.
        seconds: How long a function takes.
    """

    def __init__(self, nursery: trio.Nursery, seconds: float) -> None:
        self._nursery = nursery
        self._seconds = seconds

    async def run(
        self, function: Callable[[], R], *, on_abandoned: Callable[[], None] | None = None
    ) -> R:
        """See `triolet.engine.offload.Offload.run`."""
        end_time = trio.current_time() + self._seconds
        try:
            await trio.sleep_until(end_time)
        except trio.Cancelled:
            if on_abandoned is not None:
                self._nursery.start_soon(_tell_at, end_time, on_abandoned)
            raise
        return function()


async def _tell_at(time: float, on_abandoned: Callable[[], None]) -> None:
    await trio.sleep_until(time)
    on_abandoned()
