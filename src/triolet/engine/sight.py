"""What can be seen of an engine from outside: health, gauges, the actor tree (G8)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import attrs
import trio

from triolet.config import EngineConfig
from triolet.dispatcher.actor import OutputDispatcher
from triolet.engine.client import EngineStatistics, Health
from triolet.runner.actor import DeviceRunner
from triolet.scheduler.actor import StepLoop
from triolet.scheduler.statistics import RequestStatistics
from triolet.telemetry.metrics import Metrics
from triolet.tracker.actor import RequestTracker
from triolet.tracker.registry import Registry, RequestEntry
from triolet.tracker.request_state import RequestState


@attrs.frozen(eq=False)
class Preparing:
    """A request that is not submitted yet: its prompt is tokenized, its grammar proved."""

    label: str | None
    arrival_time: float
    estimated_tokens: int


class EngineSight:
    """Takes statistics of all actors together, and keeps the gauges up to date."""

    def __init__(
        self,
        config: EngineConfig,
        metrics: Metrics,
        registry: Registry,
        tracker: RequestTracker,
        step_loop: StepLoop,
        runner: DeviceRunner,
        dispatcher: OutputDispatcher,
    ) -> None:
        self._cache = config.cache
        self._stuck_after_s = config.runner.step_timeout_s
        self._metrics = metrics
        self._registry = registry
        self._tracker = tracker
        self._step_loop = step_loop
        self._runner = runner
        self._dispatcher = dispatcher

    def health(self) -> Health:
        """What the actors do, while the engine is open and alive."""
        steps = self._step_loop.statistics()
        now = trio.current_time()
        if steps.busy_since is not None and now - steps.busy_since > self._stuck_after_s:
            return Health.STUCK
        return Health.SERVING if steps.runner_ready else Health.STARTING

    def statistics(
        self, health: Health, scopes: int, preparing: Collection[Preparing]
    ) -> EngineStatistics:
        """A moment in the life of the engine.

        Args:
            health: Its state.
            scopes: Requests whose scope is open.
            preparing: Those of them that are not submitted yet.
        """
        now = trio.current_time()
        steps = self._step_loop.statistics()
        scheduler = steps.scheduler
        assert scheduler is not None, "there is no engine before the runner was ready"
        return EngineStatistics(
            health=health,
            requests_running=scheduler.requests_running,
            requests_waiting=scheduler.requests_waiting,
            requests_live=scopes,
            blocks_total=scheduler.blocks_total,
            blocks_used=scheduler.blocks_used,
            blocks_cached=scheduler.blocks_cached,
            steps=scheduler.steps,
            last_step_age_s=None if steps.last_step_time is None else now - steps.last_step_time,
            runner_restarts=self._runner.statistics().restarts,
            tree=self._tree(now, preparing),
        )

    def set_gauges(self, scopes: int) -> None:
        """Bring up to date what is counted elsewhere."""
        metrics, scheduler = self._metrics, self._step_loop.statistics().scheduler
        assert scheduler is not None, "there is no engine before the runner was ready"
        metrics.requests_running.set(scheduler.requests_running)
        metrics.requests_waiting.set(scheduler.requests_waiting)
        metrics.requests_live.set(scopes)
        metrics.kv_blocks_used.set(scheduler.blocks_used)
        metrics.kv_blocks_total.set(scheduler.blocks_total)
        metrics.kv_usage.set(scheduler.blocks_used / scheduler.blocks_total)
        metrics.preemptions.reach(scheduler.preemptions)
        metrics.prefix_queries.reach(scheduler.prefix_queries)
        metrics.prefix_hits.reach(scheduler.prefix_hits)
        metrics.results_dropped.reach(scheduler.dropped_results)
        metrics.runner_restarts.reach(self._runner.statistics().restarts)
        metrics.describe_cache(
            self._cache.block_size,
            scheduler.blocks_total,
            prefix_caching=self._cache.enable_prefix_caching,
        )

    def _tree(self, now: float, preparing: Collection[Preparing]) -> dict[str, Any]:
        scheduled = {request.request_id: request for request in self._step_loop.requests()}
        requests = [_describe_preparing(one, now) for one in preparing]
        requests += [
            _describe(entry, scheduled.get(entry.request_id), now) for entry in self._registry
        ]
        return {
            "tracker": attrs.asdict(self._tracker.statistics()),
            "scheduler": attrs.asdict(self._step_loop.statistics()),
            "runner": attrs.asdict(self._runner.statistics()),
            "dispatcher": attrs.asdict(self._dispatcher.statistics()),
            "requests": requests,
        }


def _describe_preparing(one: Preparing, now: float) -> dict[str, object]:
    return {
        "id": None,
        "label": one.label,
        "state": RequestState.RESERVED,
        "phase": "preparing",
        "age_s": now - one.arrival_time,
        "prompt_tokens": one.estimated_tokens,
    }


def _describe(
    entry: RequestEntry, scheduled: RequestStatistics | None, now: float
) -> dict[str, object]:
    request = entry.request
    total = request.timeouts.total
    description: dict[str, object] = {
        "id": request.request_id,
        "label": request.label,
        "state": entry.state,
        "phase": "submitted" if scheduled is None else scheduled.phase,
        "age_s": now - request.arrival_time,
        "prompt_tokens": request.num_prompt_tokens,
        "deadline_left_s": None if total is None else request.arrival_time + total - now,
    }
    if scheduled is not None:
        description |= {
            "blocks": scheduled.blocks,
            "sequences": scheduled.sequences,
            "output_tokens": scheduled.output_tokens,
            "preemptions": scheduled.preemptions,
        }
    return description
