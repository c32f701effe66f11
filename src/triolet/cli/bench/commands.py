"""`triolet bench throughput`, `latency` and `serve`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import attrs
import trio
from cyclopts import App, Parameter
from rich.console import Console

from triolet.cli import settings
from triolet.cli.bench.measure import measure_engine, measure_offline, measure_server
from triolet.cli.bench.report import json_lines, remarks, table
from triolet.cli.bench.server_load import ServerLoad
from triolet.cli.bench.workload import WorkloadConfig
from triolet.cli.console import error_console
from triolet.cli.log_output import configure_logging
from triolet.cli.settings import (
    CacheSettings,
    LimitSettings,
    LogSettings,
    ModelSettings,
    RunnerSettings,
    SchedulerSettings,
    Sources,
    engine_config,
)

bench_app = App(name="bench", help="Measure an engine or a server.")

Workload = Annotated[WorkloadConfig, Parameter(name="*", group="Workload")]
Load = Annotated[ServerLoad, Parameter(name="*", group="Server")]
AsJson = Annotated[
    bool, Parameter(name="--json", negative="", help="Print JSON lines instead of a table.")
]
DEFAULT_WORKLOAD = WorkloadConfig()
LATENCY_WORKLOAD = WorkloadConfig(num_prompts=4)
DEFAULT_LOAD = ServerLoad()
PIPE_COLUMNS = 200


@bench_app.command
def throughput(
    model: ModelSettings = settings.DEFAULT_MODEL,
    *,
    cache: CacheSettings = settings.DEFAULT_CACHE,
    scheduler: SchedulerSettings = settings.DEFAULT_SCHEDULER,
    runner: RunnerSettings = settings.DEFAULT_RUNNER,
    limits: LimitSettings = settings.DEFAULT_LIMITS,
    log: LogSettings = settings.DEFAULT_LOG,
    workload: Workload = DEFAULT_WORKLOAD,
    as_json: AsJson = False,
    sources: Annotated[Sources, Parameter(parse=False)],
) -> int:
    """Tokens per second offline: all prompts are given to `LLM.generate` at once."""
    config = engine_config(model, cache, scheduler, runner, limits)
    workload.check()
    _configure_logging(log, sources)
    rows = measure_offline(config, workload)
    return _show({"bench": "throughput", "model": config.model.model}, workload, rows, as_json)


@bench_app.command
def latency(
    model: ModelSettings = settings.DEFAULT_MODEL,
    *,
    cache: CacheSettings = settings.DEFAULT_CACHE,
    scheduler: SchedulerSettings = settings.DEFAULT_SCHEDULER,
    runner: RunnerSettings = settings.DEFAULT_RUNNER,
    limits: LimitSettings = settings.DEFAULT_LIMITS,
    log: LogSettings = settings.DEFAULT_LOG,
    workload: Workload = LATENCY_WORKLOAD,
    as_json: AsJson = False,
    sources: Annotated[Sources, Parameter(parse=False)],
) -> int:
    """Latency of one stream at a time, in process: the engine does nothing else."""
    config = engine_config(model, cache, scheduler, runner, limits)
    workload.check()
    _configure_logging(log, sources)
    rows = trio.run(measure_engine, config, workload)
    return _show({"bench": "latency", "model": config.model.model}, workload, rows, as_json)


@bench_app.command
def serve(
    *, load: Load = DEFAULT_LOAD, workload: Workload = DEFAULT_WORKLOAD, as_json: AsJson = False
) -> int:
    """Load an OpenAI-compatible server with streams, in a closed or an open loop.

    Exit code 1 if a request failed.
    """
    load.check()
    workload.check()
    rows, asked = trio.run(measure_server, load, workload)
    return _show({"bench": "serve", **asked}, workload, rows, as_json)


def _configure_logging(log: LogSettings, sources: Sources) -> None:
    """Only warnings, unless somebody asked for more."""
    level = log.log_level if sources.was_given("log_level") else "warning"
    configure_logging(log.log_format, level)


def _show(
    asked: Mapping[str, Any],
    workload: WorkloadConfig,
    rows: Sequence[Mapping[str, Any]],
    as_json: bool,
) -> int:
    """Print what was measured; returns the exit code."""
    if as_json:
        for line in json_lines({**asked, **attrs.asdict(workload)}, rows):
            print(line, flush=True)
    else:
        # What is no terminal has no width to fit in.
        console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
        console.print(table(rows))
    for remark in remarks(rows):
        error_console().print(remark)
    return 1 if any(row.get("failed") for row in rows) else 0
