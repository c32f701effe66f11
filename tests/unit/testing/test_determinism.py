"""The private names of trio that the harness needs are there, and are put back."""

from __future__ import annotations

import random

import pytest
import trio
import trio._core._run as trio_run
from trio.lowlevel import Abort, wait_task_rescheduled
from trio.testing import wait_all_tasks_blocked

from triolet.errors import InternalError
from triolet.testing import determinism
from triolet.testing.determinism import check_private_names, deterministic_schedule


def abort_order(number: int) -> list[int]:
    """The order in which the waits of cancelled tasks are aborted: a set, walked by trio."""
    order: list[int] = []

    async def wait(name: int) -> None:
        def abort(_: object) -> Abort:
            order.append(name)
            return Abort.SUCCEEDED

        await wait_task_rescheduled(abort)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for name in range(number):
                nursery.start_soon(wait, name)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    return order


def test_this_trio_has_the_names() -> None:
    check_private_names()


def test_a_trio_without_them_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinism, "_MODULE_NAMES", ("_no_such_switch",))
    monkeypatch.setattr(determinism, "_TASK_NAMES", ("_no_such_field",))
    with pytest.raises(InternalError, match=r"_no_such_switch, Task\._no_such_field"):
        check_private_names()


def test_sets_of_tasks_are_walked_in_one_order() -> None:
    orders = []
    for number in range(4):
        junk = [bytearray(100 + i) for i in range(number * 97)]
        with deterministic_schedule(1):
            orders.append(abort_order(30))
        del junk
    assert orders[1:] == orders[:-1]


def test_trio_is_put_back_as_it_was() -> None:
    def state() -> tuple[object, ...]:
        return (
            trio_run._ALLOW_DETERMINISTIC_SCHEDULING,
            trio_run._r,
            trio.lowlevel.Task.__hash__,
            trio_run.CancelStatus.__hash__,
        )

    before = state()
    with pytest.raises(KeyError), deterministic_schedule(random.Random(0).randrange(99)):
        raise KeyError
    assert state() == before
