"""A channel is bounded, takes everything at once, and can be woken without a message."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triolet.actor.channel import Channel
from triolet.errors import InternalError


async def test_everything_that_waits_is_taken_at_once_in_order() -> None:
    channel = Channel[int]("numbers", 3)
    for number in (1, 2, 3):
        channel.send_nowait(number)
    assert await channel.receive_all() == [1, 2, 3]
    assert channel.receive_all_nowait() == []


async def test_a_send_without_a_credit_is_a_bug_and_names_the_channel() -> None:
    channel = Channel[int]("numbers", 1)
    channel.send_nowait(1)
    channel.wake()
    with pytest.raises(InternalError, match="numbers"):
        channel.send_nowait(2)
    assert await channel.receive_all() == [1]


async def test_a_wake_up_carries_nothing_and_never_fills_the_channel() -> None:
    channel = Channel[int]("numbers", 1)
    for _ in range(5):
        channel.wake()
    assert channel.depth == 0
    channel.send_nowait(1)
    assert await channel.receive_all() == [1]
    channel.wake()
    assert await channel.receive_all() == []


async def test_a_waiting_receiver_is_woken(nursery: trio.Nursery) -> None:
    channel = Channel[int]("numbers", 1)
    taken: list[list[int]] = []

    async def receive() -> None:
        taken.append(await channel.receive_all())

    nursery.start_soon(receive)
    await wait_all_tasks_blocked()
    assert taken == []
    channel.wake()
    await wait_all_tasks_blocked()
    assert taken == [[]]


async def test_a_cancelled_receive_takes_nothing() -> None:
    channel = Channel[int]("numbers", 2)
    with trio.CancelScope() as scope:
        scope.cancel()
        await channel.receive_all()
    channel.send_nowait(7)
    assert await channel.receive_all() == [7]


async def test_send_waits_for_a_place(nursery: trio.Nursery) -> None:
    channel = Channel[int]("numbers", 1)
    sent: list[int] = []

    async def send() -> None:
        for number in range(4):
            await channel.send(number)
            sent.append(number)

    nursery.start_soon(send)
    await wait_all_tasks_blocked()
    assert len(sent) < 4
    got: list[int] = []
    while len(got) < 4:
        got += await channel.receive_all()
    assert got == [0, 1, 2, 3]


async def test_statistics_count() -> None:
    channel = Channel[int]("numbers", 3)
    channel.send_nowait(1)
    channel.send_nowait(2)
    await channel.receive_all()
    statistics = channel.statistics()
    assert (statistics.depth, statistics.depth_max, statistics.sent) == (0, 2, 2)
