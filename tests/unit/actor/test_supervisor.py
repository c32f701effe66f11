"""Restart budgets run out and recover; shields have an end."""

import pytest
import trio

from triolet.actor.supervisor import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    RestartBudget,
    bounded_shield,
    open_service_nursery,
)


def test_the_pause_doubles_up_to_its_bound() -> None:
    budget = RestartBudget(limit=20, window_s=1000.0)
    pauses = [budget.spend(now=0.0) for _ in range(12)]
    assert pauses[:3] == [BACKOFF_FIRST_S, 2 * BACKOFF_FIRST_S, 4 * BACKOFF_FIRST_S]
    assert pauses[-1] == BACKOFF_MAX_S


def test_the_budget_runs_out_within_a_window_and_recovers_after_it() -> None:
    budget = RestartBudget(limit=2, window_s=10.0)
    assert budget.spend(0.0) is not None
    assert budget.spend(1.0) is not None
    assert budget.spend(2.0) is None
    assert budget.spend(10.5) is not None
    assert budget.spend(10.6) is None
    assert budget.restarts == 3


async def test_a_bounded_shield_waits_in_spite_of_cancellation_and_not_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with trio.CancelScope() as outer:
        outer.cancel()
        start = trio.current_time()
        with bounded_shield(5.0, "test") as scope:
            await trio.sleep(1000.0)
        assert scope.cancelled_caught
        assert trio.current_time() - start == pytest.approx(5.0)


async def test_the_body_is_cancelled_before_its_servants() -> None:
    order: list[str] = []

    async def servant() -> None:
        try:
            await trio.sleep_forever()
        finally:
            order.append("servant")

    with trio.CancelScope() as scope:
        async with open_service_nursery() as nursery:
            nursery.start_soon(servant)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                order.append("body")
    assert order == ["body", "servant"]


async def test_an_exception_of_the_body_leaves_a_cancelled_nursery_bare() -> None:
    with trio.CancelScope() as scope:
        with pytest.raises(KeyError):
            async with open_service_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                scope.cancel()
                raise KeyError
