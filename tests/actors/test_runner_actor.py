"""The DeviceRunner replaces a worker that dies, whatever it dies of, and knows when to stop."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from typing_extensions import override

from support.batches import PROMPT, make_batch
from triolet.actor.channel import Channel
from triolet.actor.faultpoint import FaultPoints
from triolet.config import EngineConfig, RunnerConfig
from triolet.errors import ConfigError, EngineDead
from triolet.messages.runner_to_scheduler import (
    BatchResult,
    RunnerFailed,
    RunnerInfo,
    RunnerReady,
)
from triolet.messages.scheduler_to_runner import (
    ScheduledBatch,
)
from triolet.request import SequenceId
from triolet.runner.actor import DeviceRunner
from triolet.runner.backend import Progress
from triolet.testing.fake_runner import FakeRunner, expected_tokens, fake_facts
from triolet.testing.simulated_transport import SimulatedTransport

Said = BatchResult | RunnerReady | RunnerFailed


@attrs.define
class House:
    batches: Channel[ScheduledBatch]
    said: Channel[Said]
    transport: SimulatedTransport
    runner: DeviceRunner

    async def next(self) -> Said:
        while True:
            for message in await self.said.receive_all():
                return message


@asynccontextmanager
async def open_runner(
    step_time: Callable[[ScheduledBatch], float] = lambda batch: 0.01,
    alter: Callable[[BatchResult], BatchResult | None] | None = None,
    **limits: object,
) -> AsyncGenerator[House]:
    config = EngineConfig.of("fake", **limits)
    transport = SimulatedTransport(
        lambda: FakeRunner(config, fake_facts()), step_time, load_s=1.0, alter=alter
    )
    batches, said = Channel[ScheduledBatch]("runner", 8), Channel[Said]("scheduler", 8)
    runner = DeviceRunner(batches, said, transport, config.runner, lambda text: None, FaultPoints())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runner.run)
        yield House(batches, said, transport, runner)
        nursery.cancel_scope.cancel()


async def test_a_batch_is_executed(autojump_clock: trio.testing.MockClock) -> None:
    async with open_runner() as house:
        ready = await house.next()
        assert isinstance(ready, RunnerReady)
        assert ready.incarnation == 1
        house.batches.send_nowait(make_batch(1, 1))
        result = await house.next()
        assert isinstance(result, BatchResult)
        assert result.token_ids == expected_tokens(PROMPT, 1)


async def test_a_killed_worker_is_replaced_with_as_many_blocks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_runner(step_time=lambda batch: 5.0) as house:
        first = await house.next()
        assert isinstance(first, RunnerReady)
        house.batches.send_nowait(make_batch(1, 1))
        await trio.sleep(1.0)
        house.transport.kill()
        failed = await house.next()
        assert failed == RunnerFailed(1, "killed by the test", "killed")
        again = await house.next()
        assert isinstance(again, RunnerReady)
        assert again.incarnation == 2
        assert again.info.num_blocks == first.info.num_blocks
        house.batches.send_nowait(make_batch(1, 2))  # for the dead one: dropped
        house.batches.send_nowait(make_batch(2, 3))
        result = await house.next()
        assert isinstance(result, BatchResult)
        assert (result.incarnation, result.step) == (2, 3)
        assert house.runner.statistics().restarts == 1


async def test_a_step_that_does_not_end_is_a_hang(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_runner(step_time=lambda batch: math.inf, step_timeout_s=7.0) as house:
        await house.next()
        start = trio.current_time()
        house.batches.send_nowait(make_batch(1, 1))
        failed = await house.next()
        assert isinstance(failed, RunnerFailed)
        assert failed.kind == "hang"
        assert trio.current_time() - start == pytest.approx(7.0)


async def test_an_idle_runner_never_times_out(autojump_clock: trio.testing.MockClock) -> None:
    async with open_runner(step_timeout_s=1.0) as house:
        await house.next()
        await trio.sleep(1000.0)
        house.batches.send_nowait(make_batch(1, 1))
        assert isinstance(await house.next(), BatchResult)


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda result: attrs.evolve(result, token_ids=[10**9]),
        lambda result: attrs.evolve(result, token_ids=[]),
        lambda result: attrs.evolve(result, step=result.step + 1),
        lambda result: attrs.evolve(result, incarnation=9),
        lambda result: attrs.evolve(result, sequence_ids=[SequenceId(77)]),
        lambda result: attrs.evolve(
            result, sequence_ids=result.sequence_ids * 2, token_ids=result.token_ids * 2
        ),
    ],
)
async def test_an_answer_that_makes_no_sense_is_a_death(
    corrupt: Callable[[BatchResult], BatchResult], autojump_clock: trio.testing.MockClock
) -> None:
    async with open_runner(alter=corrupt) as house:
        await house.next()
        house.batches.send_nowait(make_batch(1, 1))
        failed = await house.next()
        assert isinstance(failed, RunnerFailed)
        assert failed.kind == "corrupt"


async def test_a_step_that_raises_is_a_death(autojump_clock: trio.testing.MockClock) -> None:
    async with open_runner() as house:
        await house.next()
        house.batches.send_nowait(
            attrs.evolve(make_batch(1, 1), new=[])  # a sequence nobody knows
        )
        failed = await house.next()
        assert isinstance(failed, RunnerFailed)
        assert "KeyError" in failed.message


async def test_too_many_deaths_end_the_engine(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with open_runner(max_restarts=2) as house:
            deaths = 0
            while True:
                message = await house.next()
                if isinstance(message, RunnerReady):
                    house.transport.kill()
                else:
                    deaths += 1
                    assert deaths <= 3
    assert caught.group_contains(EngineDead, match="died 3 times within 300 s")


class Unloadable(FakeRunner):
    @override
    def load(self, progress: Progress, num_blocks: int | None = None) -> RunnerInfo:
        raise ConfigError("no such model", param="model")


async def test_a_model_that_cannot_be_loaded_is_the_operators_fault_and_not_retried(
    autojump_clock: trio.testing.MockClock,
) -> None:
    config = EngineConfig.of("fake")
    transport = SimulatedTransport(lambda: Unloadable(config, fake_facts()), lambda batch: 0.01)
    runner = DeviceRunner(
        Channel[ScheduledBatch]("runner", 1),
        Channel[Said]("scheduler", 1),
        transport,
        RunnerConfig(),
        lambda text: None,
        FaultPoints(),
    )
    with pytest.raises(ConfigError, match="no such model"):
        await runner.run()
    assert len(transport.backends) == 1
