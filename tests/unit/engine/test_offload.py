"""Abandoned work stays accounted for until it has really ended."""

import random
import threading
import time

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from triolet.engine.offload import InlineOffload, Offload, ThreadOffload


@pytest.mark.parametrize("make", [lambda: ThreadOffload(1), InlineOffload])
async def test_results_and_errors_come_back(make: type[InlineOffload]) -> None:
    offload: Offload = make()
    told: list[str] = []
    assert await offload.run(lambda: 7, on_abandoned=lambda: told.append("x")) == 7
    with pytest.raises(ZeroDivisionError):
        await offload.run(lambda: 1 // 0, on_abandoned=lambda: told.append("x"))
    assert told == []


async def test_an_abandoned_job_tells_when_it_has_ended_and_not_before() -> None:
    offload, go_on, told = ThreadOffload(1), threading.Event(), trio.Event()
    started = threading.Event()

    def job() -> None:
        started.set()
        go_on.wait()

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_once_started, started, scope)
            await offload.run(job, on_abandoned=told.set)
        assert scope.cancelled_caught
        await wait_all_tasks_blocked()
        assert not told.is_set()
        go_on.set()
        with trio.fail_after(5):
            await told.wait()


async def _cancel_once_started(started: threading.Event, scope: trio.CancelScope) -> None:
    await trio.to_thread.run_sync(started.wait)
    scope.cancel()


async def test_a_job_cancelled_before_it_had_a_thread_tells_at_once() -> None:
    offload, go_on, told = ThreadOffload(1), threading.Event(), list[str]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: offload.run(go_on.wait))
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_when_blocked, scope)
            await offload.run(lambda: None, on_abandoned=lambda: told.append("told"))
        assert told == ["told"]
        go_on.set()


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()


async def test_an_inline_job_can_be_cancelled_before_it_runs() -> None:
    ran, told = list[str](), list[str]()
    with trio.CancelScope() as scope:
        scope.cancel()
        await InlineOffload().run(
            lambda: ran.append("ran"), on_abandoned=lambda: told.append("told")
        )
    assert (ran, told) == ([], ["told"])


async def test_whoever_comes_second_tells_once_in_any_order_of_ending_and_leaving() -> None:
    """Cancelled at random moments around the end of the job: always told exactly once."""
    offload, rng = ThreadOffload(4), random.Random(1)
    told = abandoned = 0

    def tell() -> None:
        nonlocal told
        told += 1

    def job() -> None:
        until = time.perf_counter() + rng.random() * 1e-3
        while time.perf_counter() < until:
            pass

    for _ in range(400):
        with trio.move_on_after(rng.random() * 2e-3) as scope:
            await offload.run(job, on_abandoned=tell)
        abandoned += scope.cancelled_caught
    with trio.fail_after(10):
        while told < abandoned:
            await trio.sleep(0.001)
    await trio.sleep(0.01)
    assert 0 < abandoned < 400
    assert told == abandoned
