"""The blocking loop inside a worker thread or process. No trio here.

A worker owns one backend and is the only one that calls it. It launches as many batches as
the backend holds at once, collects in order, and ends when it is told to, when the backend
raises, or (as a process) when its parent is gone: its standard input is the lifeline.
"""

from __future__ import annotations

import importlib
import queue
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import attrs

from triolet.config import EngineConfig
from triolet.messages.runner_to_scheduler import BatchResult, RunnerInfo
from triolet.messages.scheduler_to_runner import ScheduledBatch
from triolet.model_source.facts import ModelFacts
from triolet.runner.backend import RunnerBackend

MODEL_RUNNER = "triolet.runner.model_runner:ModelRunner"
"""The backend of real models."""


@attrs.frozen
class WorkerSpec:
    """Everything a worker needs to build its backend, in this process or another.

    Attributes:
        config: The engine's configuration.
        facts: The model.
        backend: Import path "module:name" of a callable (config, facts, **options).
        options: Plain data for it.
    """

    config: EngineConfig
    facts: ModelFacts
    backend: str = MODEL_RUNNER
    options: Mapping[str, Any] = attrs.field(factory=dict[str, Any])

    def build(self) -> RunnerBackend:
        """Import and call the backend's factory."""
        module, _, name = self.backend.partition(":")
        factory = getattr(importlib.import_module(module), name)
        return cast("RunnerBackend", factory(self.config, self.facts, **self.options))


class Outlet(Protocol):
    """What a worker says, in order: progress, ready, results; failed perhaps; end."""

    def progress(self, text: str) -> None:
        """What the loading does now."""
        ...

    def ready(self, info: RunnerInfo) -> None:
        """The backend is loaded."""
        ...

    def result(self, result: BatchResult) -> None:
        """A step ended."""
        ...

    def failed(self, error: Exception) -> None:
        """The backend raised; only the end follows."""
        ...

    def end(self) -> None:
        """The backend is closed and the worker's last line has run."""
        ...


TakeBatch = Callable[[bool], "ScheduledBatch | None"]
"""Called with whether to wait. Raises `queue.Empty` if not waiting and nothing is there;
None is the order to end."""


def work(
    build: Callable[[], RunnerBackend], num_blocks: int | None, take: TakeBatch, outlet: Outlet
) -> None:
    """Load, then execute batches until told to end. Returns, never raises an Exception."""
    backend: RunnerBackend | None = None
    try:
        backend = build()
        info = backend.load(outlet.progress, num_blocks)
        outlet.ready(info)
        _execute(backend, info.steps_in_flight, take, outlet)
    except Exception as error:
        outlet.failed(error)
    finally:
        try:
            if backend is not None:
                backend.close()
        finally:
            outlet.end()


def _execute(backend: RunnerBackend, steps_in_flight: int, take: TakeBatch, outlet: Outlet) -> None:
    launched = 0
    while True:
        while launched < steps_in_flight:
            try:
                batch = take(launched == 0)
            except queue.Empty:
                break
            if batch is None:
                return
            backend.launch(batch)
            launched += 1
        outlet.result(backend.collect())
        launched -= 1
