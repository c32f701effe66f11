"""Typed, named, measured memory channels; the only place that opens one.

An inbox is one channel. Its owner takes everything that is there each time it wakes
(`receive_all`); senders use `send_nowait` with a credit they already hold, so that a full
channel is a bug and raises. Only the edge from a caller into the engine waits (`send`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar, cast

import attrs
import trio

from triolet.errors import InternalError

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Outlet(Protocol[T_contra]):
    """The sending end of a channel, as an actor that holds credits sees it."""

    def send_nowait(self, message: T_contra) -> None:
        """See `Channel.send_nowait`."""
        ...


@attrs.frozen
class ChannelStatistics:
    """A moment in the life of a channel.

    Attributes:
        name: As in `engine/wiring.py`.
        depth: Messages that wait now.
        bound: Messages that may wait.
        depth_max: The most that ever waited.
        sent: Messages sent so far.
    """

    name: str
    depth: int
    bound: int
    depth_max: int
    sent: int


class _Wake:
    """Wakes a receiver without carrying anything."""


_WAKE = _Wake()


class Channel(Generic[T]):
    """A bounded channel into one actor.

    Args:
        name: What it is called in statistics and errors.
        bound: Messages that may wait in it, and nothing may ever exceed.
    """

    def __init__(self, name: str, bound: int) -> None:
        self.name = name
        self.bound = bound
        # One place more than the bound: a wake-up is always possible.
        ends: tuple[trio.MemorySendChannel[object], trio.MemoryReceiveChannel[object]]
        ends = trio.open_memory_channel(bound + 1)
        self._send, self._receive = ends
        self._sent = 0
        self._depth_max = 0
        self._waking = False
        self.hold_up: Callable[[], Awaitable[None]] | None = None
        """Called before each receive, for a harness that clogs the channel."""

    def send_nowait(self, message: T) -> None:
        """Send with a credit already held.

        Raises:
            InternalError: The channel is full: somebody sent without a credit.
        """
        if self.depth >= self.bound:
            raise InternalError(f"channel {self.name} is full ({self.bound}): a credit is missing")
        self._send.send_nowait(message)
        self._count()

    async def send(self, message: T) -> None:
        """Send, waiting for a place. A checkpoint; cancelled, nothing was sent."""
        await self._send.send(message)
        self._count()

    def wake(self) -> None:
        """Make the receiver return from `receive_all`, with an empty list if need be."""
        if not self._waking:
            self._waking = True
            self._send.send_nowait(_WAKE)

    async def receive_all(self) -> list[T]:
        """Wait until something is there, then take all of it, in order.

        A checkpoint; cancelled, nothing was taken. May return an empty list after `wake`.
        """
        if self.hold_up is not None:
            await self.hold_up()
        first = await self._receive.receive()
        return (
            [cast("T", first), *self.receive_all_nowait()] if first is not _WAKE else self._woken()
        )

    def receive_all_nowait(self) -> list[T]:
        """Take all that is there, in order; nothing there is an empty list."""
        taken: list[T] = []
        while True:
            try:
                message = self._receive.receive_nowait()
            except trio.WouldBlock:
                return taken
            if message is _WAKE:
                self._waking = False
            else:
                taken.append(cast("T", message))

    def _woken(self) -> list[T]:
        self._waking = False
        return self.receive_all_nowait()

    @property
    def depth(self) -> int:
        """Messages that wait now."""
        return self._send.statistics().current_buffer_used - self._waking

    def statistics(self) -> ChannelStatistics:
        """Depth now and so far."""
        return ChannelStatistics(self.name, self.depth, self.bound, self._depth_max, self._sent)

    def _count(self) -> None:
        self._sent += 1
        self._depth_max = max(self._depth_max, self.depth)
