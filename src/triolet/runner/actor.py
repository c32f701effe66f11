"""The DeviceRunner actor: owns one worker at a time and replaces it when it dies.

Its life is a row of incarnations. Each loads the model, says RunnerReady, executes batches in
order, and ends in a death: the worker is gone, a step is older than the limit, or an answer
makes no sense. The death is told as RunnerFailed, and the next incarnation follows after a
pause, until the budget of restarts is used up.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable

import attrs
import trio

from triolet.actor.channel import Channel, ChannelStatistics, Outlet
from triolet.actor.faultpoint import FaultPoints
from triolet.actor.supervisor import RestartBudget, first_exception
from triolet.config import RunnerConfig
from triolet.errors import ConfigError, EngineDead
from triolet.messages.runner_to_scheduler import (
    BatchResult,
    RunnerFailed,
    RunnerInfo,
    RunnerReady,
)
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.runner.transport import Transport, Worker, WorkerDied

log = logging.getLogger(__name__)


@attrs.frozen
class RunnerStatistics:
    """A moment in the life of the runner.

    Attributes:
        state: "starting", "idle", "stepping", "pausing" or "dead".
        incarnation: Which life this is, from 1.
        restarts: Lives begun after a death.
        steps: Steps finished in all lives.
        step_age_s: Age of the oldest step in flight, None if there is none.
        inbox: Its channel.
    """

    state: str
    incarnation: int
    restarts: int
    steps: int
    step_age_s: float | None
    inbox: ChannelStatistics


class DeviceRunner:
    """Executes batches on one device, through a worker it supervises.

    Args:
        inbox: Batches.
        scheduler: The scheduler's inbox.
        transport: Opens workers.
        config: Limits of time and restarts.
        progress: Told what the loading does, for people.
        faults: Fault points.
    """

    def __init__(
        self,
        inbox: Channel[ScheduledBatch],
        scheduler: Outlet[BatchResult | RunnerReady | RunnerFailed],
        transport: Transport,
        config: RunnerConfig,
        progress: Callable[[str], None],
        faults: FaultPoints,
    ) -> None:
        self.inbox = inbox
        self._scheduler = scheduler
        self._transport = transport
        self._config = config
        self._progress = progress
        self._faults = faults
        self._budget = RestartBudget(config.max_restarts, config.restart_window_s)
        self._state = "starting"
        self._incarnation = 0
        self._steps = 0
        self._num_blocks: int | None = None
        self._in_flight: deque[tuple[ScheduledBatch, float]] = deque()
        self._step_timer = trio.CancelScope()

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            ConfigError: The model cannot be loaded; nothing was served.
            EngineDead: The budget of restarts is used up.
        """
        while True:
            self._incarnation += 1
            self._in_flight.clear()
            try:
                await self._live()
            except WorkerDied as death:
                await self._bury(death)

    def statistics(self) -> RunnerStatistics:
        """A moment in its life."""
        now = trio.current_time()
        return RunnerStatistics(
            state="stepping" if self._state == "idle" and self._in_flight else self._state,
            incarnation=self._incarnation,
            restarts=self._budget.restarts,
            steps=self._steps,
            step_age_s=now - self._in_flight[0][1] if self._in_flight else None,
            inbox=self.inbox.statistics(),
        )

    async def _live(self) -> None:
        """One incarnation, from loading to death."""
        self._state = "starting"
        async with self._transport.open(self._progress, self._num_blocks) as worker:
            info = await self._load(worker)
            self._num_blocks = info.num_blocks
            # What was sent to the last incarnation is void, and the scheduler knows.
            self.inbox.receive_all_nowait()
            self._state = "idle"
            self._scheduler.send_nowait(RunnerReady(self._incarnation, info))
            death: WorkerDied | None = None
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._feed, worker)
                    nursery.start_soon(self._collect, worker, info)
            except* WorkerDied as deaths:
                death = first_exception(deaths)  # raised below: `except*` would wrap it again
            assert death is not None, "both tasks run until one finds the worker dead"
            raise death

    async def _load(self, worker: Worker) -> RunnerInfo:
        limit_s = self._config.load_timeout_s
        try:
            with trio.fail_after(limit_s):
                return await worker.wait_ready()
        except trio.TooSlowError:
            raise WorkerDied(
                f"loading took longer than {limit_s:g} s (load_timeout_s)", "hang"
            ) from None
        except (ConfigError, WorkerDied):
            raise
        except Exception as error:
            raise WorkerDied(f"loading failed: {_describe(error)}") from error

    async def _feed(self, worker: Worker) -> None:
        while True:
            for batch in await self.inbox.receive_all():
                if batch.incarnation != self._incarnation:
                    continue
                self._faults.hit("runner.before_submit")
                self._in_flight.append((batch, trio.current_time()))
                self._set_timer()
                await worker.submit(batch)

    async def _collect(self, worker: Worker, info: RunnerInfo) -> None:
        with trio.CancelScope() as self._step_timer:
            self._set_timer()
            while True:
                try:
                    result = await worker.next_result()
                except WorkerDied:
                    raise
                except Exception as error:
                    raise WorkerDied(f"a step failed: {_describe(error)}") from error
                self._check(result, info)
                self._in_flight.popleft()
                self._steps += 1
                self._faults.hit("runner.after_result")
                self._scheduler.send_nowait(result)
                self._set_timer()
        raise WorkerDied(
            f"a step took longer than {self._config.step_timeout_s:g} s (step_timeout_s)", "hang"
        )

    def _set_timer(self) -> None:
        self._step_timer.deadline = (
            self._in_flight[0][1] + self._config.step_timeout_s if self._in_flight else math.inf
        )

    def _check(self, result: BatchResult, info: RunnerInfo) -> None:
        """Refuse an answer that no sound worker gives to what was asked."""
        if not self._in_flight:
            raise WorkerDied("the worker answered without a question", "corrupt")
        batch = self._in_flight[0][0]
        asked = {s.sequence_id for s in batch.scheduled if s.samples}
        failed = {e.sequence_id for e in result.errors}
        if (
            result.incarnation != batch.incarnation
            or result.step != batch.step
            or len(result.token_ids) != len(result.sequence_ids)
            or (result.logprobs and len(result.logprobs) != len(result.token_ids))
            or len(set(result.sequence_ids)) != len(result.sequence_ids)
            or set(result.sequence_ids) != asked - failed
            or any(not 0 <= token < info.vocab_size for token in result.token_ids)
        ):
            raise WorkerDied(f"the answer to step {batch.step} makes no sense", "corrupt")

    async def _bury(self, death: WorkerDied) -> None:
        """Tell of a death and pause before the next life."""
        pause_s = self._budget.spend(trio.current_time())
        if self._num_blocks is not None:
            self._scheduler.send_nowait(RunnerFailed(self._incarnation, str(death), death.kind))
        if self._num_blocks is None or pause_s is None:
            self._state = "dead"
            why = (
                "the model runner did not start"
                if self._num_blocks is None
                else f"the model runner died {self._config.max_restarts + 1} times within "
                f"{self._config.restart_window_s:g} s"
            )
            raise EngineDead(f"{why}: {death}") from death
        log.warning("model runner %d died (%s): %s", self._incarnation, death.kind, death)
        self._state = "pausing"
        await trio.sleep(pause_s)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
