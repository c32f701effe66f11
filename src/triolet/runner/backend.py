"""The seam between a worker and what computes: load, launch, collect, close.

The CPU runner, the CUDA runner and the fake one of `triolet.testing` implement it. Every
method is called in the worker's one thread, never in the trio thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from triolet.messages.runner_to_scheduler import BatchResult, RunnerInfo
from triolet.messages.scheduler_to_runner import ScheduledBatch

Progress = Callable[[str], None]
"""Told what the loading is doing now, in a few words; safe to call from the worker."""


class RunnerBackend(Protocol):
    """Computes batches on one device."""

    def load(self, progress: Progress, num_blocks: int | None = None) -> RunnerInfo:
        """Load the model, size the KV cache and warm up; blocks until ready.

        Args:
            progress: Called with what is going on.
            num_blocks: Size of the KV cache if it is not free to choose: a restart.

        Raises:
            ConfigError: The model cannot be run with this configuration.
        """
        ...

    def launch(self, batch: ScheduledBatch) -> None:
        """Start a step. At most `RunnerInfo.steps_in_flight` are started and not collected."""
        ...

    def collect(self) -> BatchResult:
        """Wait for the oldest step that was launched.

        An exception from `launch` or `collect` is the death of the runner; a fault of one
        sequence is a `RowError` in the result.
        """
        ...

    def close(self) -> None:
        """Give back device memory. Idempotent."""
        ...
