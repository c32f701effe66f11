"""Both real transports execute batches in order, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
import trio
from typing_extensions import override

from support.batches import PROMPT, make_batch
from triolet.config import EngineConfig
from triolet.engine.open_engine import open_engine_from_parts
from triolet.errors import ConfigError, RunnerStuck
from triolet.messages.runner_to_scheduler import RunnerInfo
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.runner.backend import Progress
from triolet.runner.process_transport import ProcessTransport, early_process
from triolet.runner.transport import ThreadTransport, Transport, WorkerDied
from triolet.runner.worker import WorkerSpec
from triolet.sampling_params import SamplingParams
from triolet.testing.engines import fake_parts
from triolet.testing.fake_runner import FakeRunner, expected_tokens, fake_facts

SPEC = WorkerSpec(EngineConfig.of("fake"), fake_facts(), "triolet.testing.fake_runner:FakeRunner")


class Unloadable(FakeRunner):
    @override
    def load(self, progress: Progress, num_blocks: int | None = None) -> RunnerInfo:
        raise ConfigError("no such model", param="model")


class Deaf(FakeRunner):
    """A step that lasts until the test lets it go."""

    let_go = threading.Event()

    @override
    def launch(self, batch: ScheduledBatch) -> None:
        self.let_go.wait(20)
        super().launch(batch)


def spec_of(backend: type[FakeRunner]) -> WorkerSpec:
    return WorkerSpec(SPEC.config, SPEC.facts, f"{__name__}:{backend.__name__}")


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


transports = pytest.mark.parametrize("make", [ThreadTransport, ProcessTransport])


@transports
@pytest.mark.slow
async def test_batches_are_executed_in_order_and_nothing_is_left(
    make: Callable[[WorkerSpec], Transport],
) -> None:
    left = list[tuple[int, int]]()
    for _ in range(3):
        told: list[str] = []
        with trio.fail_after(30):
            async with make(SPEC).open(told.append, 17) as worker:
                info = await worker.wait_ready()
                assert info.num_blocks == 17
                for step in range(1, 6):
                    await worker.submit(make_batch(1, step))
                results = [await worker.next_result() for _ in range(5)]
        assert told == ["loading nothing"]
        assert [result.step for result in results] == [1, 2, 3, 4, 5]
        assert all(result.token_ids == expected_tokens(PROMPT, 1) for result in results)
        left.append((threading.active_count(), open_fds()))
    # The first round may leave trio's own idle thread; no round leaves anything of ours.
    assert left[0] == left[1] == left[2]


@transports
@pytest.mark.slow
async def test_a_crash_in_a_step_is_the_workers_death(
    make: Callable[[WorkerSpec], Transport],
) -> None:
    batch = ScheduledBatch(1, 1, [], make_batch(1, 1).scheduled, [])
    with trio.fail_after(30):
        async with make(SPEC).open(lambda text: None, None) as worker:
            await worker.wait_ready()
            await worker.submit(batch)
            with pytest.raises((WorkerDied, KeyError)):
                await worker.next_result()


@pytest.mark.slow
async def test_a_worker_process_that_is_killed_is_seen_at_once() -> None:
    with trio.fail_after(30):
        async with ProcessTransport(SPEC).open(lambda text: None, None) as worker:
            await worker.wait_ready()
            os.kill(worker.pid, signal.SIGKILL)  # type: ignore[attr-defined] # its own face
            with pytest.raises(WorkerDied, match="SIGKILL") as caught:
                await worker.next_result()
            assert caught.value.kind == "killed"


@pytest.mark.slow
async def test_a_cancelled_wait_loses_no_result() -> None:
    with trio.fail_after(30):
        async with ProcessTransport(SPEC).open(lambda text: None, None) as worker:
            await worker.wait_ready()
            with trio.move_on_after(0.05):
                await worker.next_result()
            await worker.submit(make_batch(1, 1))
            assert (await worker.next_result()).step == 1


@pytest.mark.slow
async def test_leaving_in_the_middle_of_a_step_kills_the_process() -> None:
    with trio.fail_after(30):
        async with ProcessTransport(SPEC).open(lambda text: None, None) as worker:
            await worker.wait_ready()
            pid: int = worker.pid  # type: ignore[attr-defined] # its own face
            os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("told_early", [False, True])
@pytest.mark.slow
async def test_an_early_process_becomes_the_first_worker_and_only_that(told_early: bool) -> None:
    with trio.fail_after(30):
        async with early_process(SPEC.backend) as early:
            transport = ProcessTransport(SPEC, early)
            if told_early:
                await early.set_up(SPEC)
            pids: list[int] = []
            for step in (1, 2):
                async with transport.open(lambda text: None, None) as worker:
                    await worker.wait_ready()
                    pids.append(worker.pid)  # type: ignore[attr-defined] # its own face
                    await worker.submit(make_batch(1, step))
                    assert (await worker.next_result()).step == step
            assert pids[0] == early.process.pid != pids[1]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
async def test_an_early_process_that_nobody_takes_is_ended_at_once() -> None:
    left = list[int]()
    for _ in range(3):
        with trio.fail_after(5), trio.CancelScope() as scope:
            async with early_process(SPEC.backend) as early:
                scope.cancel()
                await trio.sleep_forever()
        with pytest.raises(ProcessLookupError):
            os.kill(early.process.pid, 0)
        left.append(open_fds())
    assert left[0] == left[1] == left[2]


@pytest.mark.slow
async def test_an_early_process_that_has_died_is_the_death_of_the_worker() -> None:
    with trio.fail_after(30):
        async with early_process(SPEC.backend) as early:
            early.process.kill()
            await early.process.wait()
            await early.set_up(SPEC)
            with pytest.raises(WorkerDied, match="SIGKILL"):
                async with ProcessTransport(SPEC, early).open(lambda text: None, None) as worker:
                    await worker.wait_ready()


@pytest.mark.slow
async def test_a_module_that_cannot_be_imported_is_named() -> None:
    spec = WorkerSpec(SPEC.config, SPEC.facts, "triolet.no_such_module:Backend")
    with trio.fail_after(30), pytest.raises(WorkerDied, match="no_such_module"):
        async with ProcessTransport(spec).open(lambda text: None, None) as worker:
            await worker.wait_ready()


async def test_a_thread_that_cannot_be_loaded_says_so() -> None:
    with trio.fail_after(10):
        async with ThreadTransport(spec_of(Unloadable)).open(lambda text: None, None) as worker:
            with pytest.raises(ConfigError, match="no such model"):
                await worker.wait_ready()


async def test_a_stuck_thread_is_reported_within_a_bound() -> None:
    Deaf.let_go.clear()
    transport = ThreadTransport(spec_of(Deaf), join_timeout_s=0.2)
    with pytest.raises(RunnerStuck), trio.fail_after(10):
        async with transport.open(lambda text: None, None) as worker:
            await worker.wait_ready()
            await worker.submit(make_batch(1, 1))
            await trio.sleep(0.05)
    Deaf.let_go.set()


async def test_leaving_an_engine_with_a_stuck_thread_raises_runner_stuck() -> None:
    Deaf.let_go.clear()
    transport = ThreadTransport(spec_of(Deaf), join_timeout_s=0.2)
    parts = fake_parts(SPEC.facts, transport)
    with pytest.raises(RunnerStuck), trio.fail_after(20):
        async with (
            open_engine_from_parts(SPEC.config, parts) as engine,
            engine.generate([40], SamplingParams(max_tokens=5)),
        ):
            await trio.sleep(0.1)
    Deaf.let_go.set()
