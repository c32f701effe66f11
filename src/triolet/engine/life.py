"""What happens to one request between its submission and its end, in one place.

The stream tells the life of its request here; the registry, the metrics and the log learn of
it from here. Every method is synchronous.
"""

from __future__ import annotations

import logging

import trio

from triolet.errors import EngineDead
from triolet.output import Usage
from triolet.request import FinishReason
from triolet.telemetry.metrics import Metrics
from triolet.tracker.registry import Registry, RequestEntry
from triolet.tracker.request_state import RequestState

log = logging.getLogger(__name__)

FINISHED = "finished"
"""The cause of a normal end: the scheduler decided it, and needs no mark."""

CAUSES = {
    "client disconnected": "client_disconnected",
    "client stalled": "client_stalled",
    "shutdown": "shutdown",
    "deadline": "deadline",
}
"""Reasons of trio's cancellations that are counted apart; metrics need a closed set."""


class RequestLife:
    """Follows one request, for the registry and the metrics."""

    def __init__(self, registry: Registry, metrics: Metrics) -> None:
        self._registry = registry
        self._metrics = metrics
        self._entry: RequestEntry | None = None
        self._last_delivery: dict[int, float] = {}
        self._first_delivery: float | None = None
        self._finished_reason: str | None = None

    def attach(self, entry: RequestEntry) -> None:
        """Begin to follow; once."""
        assert self._entry is None
        self._entry = entry

    @property
    def entry(self) -> RequestEntry:
        """The request it follows."""
        assert self._entry is not None
        return self._entry

    def started(self, cached_tokens: int) -> None:
        """It has its first place in a step."""
        entry, now = self.entry, trio.current_time()
        if entry.start_time is not None:
            return
        entry.start_time = now
        entry.advance(RequestState.RUNNING)
        entry.reservation.start()
        self._metrics.queue_time.observe(now - entry.request.arrival_time)
        self._metrics.prompt_tokens.inc(entry.request.num_prompt_tokens)
        self._metrics.prompt_tokens_cached.inc(cached_tokens)
        self._metrics.request_prompt_tokens.observe(entry.request.num_prompt_tokens)
        self._metrics.request_params_n.observe(entry.request.sampling.n)
        if entry.request.sampling.max_tokens is not None:
            self._metrics.request_params_max_tokens.observe(entry.request.sampling.max_tokens)

    def delivered(self, index: int, tokens: int) -> None:
        """A piece of an output with so many new tokens was released."""
        if not tokens:
            return
        now = trio.current_time()
        if self._first_delivery is None:
            self._first_delivery = now
            arrival_time = self.entry.request.arrival_time
            self._metrics.time_to_first_token.observe(now - arrival_time)
        # Tokens that are released together share the time since the last ones: there is one
        # interval for each token but the first of an output.
        last = self._last_delivery.get(index)
        intervals = tokens - (last is None)
        for _ in range(intervals):
            self._metrics.inter_token_latency.observe(
                0.0 if last is None else (now - last) / tokens
            )
        self._last_delivery[index] = now
        self._metrics.generation_tokens.inc(tokens)

    def finished(self, usage: Usage, reason: FinishReason | None) -> None:
        """Every output has ended; `reason` is that of the first one."""
        if not self._registry.end(self.entry, RequestState.FINISHED, FINISHED):
            return
        self._finished_reason = "stop" if reason is None else reason.value
        metrics, now = self._metrics, trio.current_time()
        metrics.request_generation_tokens.observe(usage.completion_tokens)
        start, first = self.entry.start_time, self._first_delivery
        if start is None or first is None:
            return
        last = max(self._last_delivery.values())
        metrics.inference_time.observe(now - start)
        metrics.prefill_time.observe(first - start)
        metrics.decode_time.observe(last - first)
        if usage.completion_tokens > 1:
            metrics.time_per_output_token.observe((last - first) / (usage.completion_tokens - 1))

    def failed(self, error: Exception) -> None:
        """It failed."""
        cause = "engine_dead" if isinstance(error, EngineDead) else getattr(error, "code", "error")
        self._registry.end(self.entry, RequestState.FAILED, str(cause))

    def left(self, exception: BaseException | None) -> None:
        """Its scope was left, with this exception on the way through."""
        entry, now = self.entry, trio.current_time()
        if self._registry.end(entry, RequestState.CANCELLED, cause_of(exception)):
            log.debug("request %s left: %r", entry.request_id, exception)
        self._registry.forget(entry, now)
        assert entry.cause is not None
        self._metrics.request_ended(entry.state, entry.cause)
        failed = entry.state is RequestState.FAILED
        self._metrics.request_succeeded(self._finished_reason or ("error" if failed else "abort"))
        self._metrics.e2e_latency.observe(now - entry.request.arrival_time)


def cause_of(exception: BaseException | None) -> str:
    """Why a scope was left before its request had ended, in a word of a closed set."""
    match exception:
        case None | GeneratorExit():
            return "left"
        case trio.Cancelled():
            return CAUSES.get(exception.reason or exception.source, "cancelled")
        case _:
            return "consumer_error"
