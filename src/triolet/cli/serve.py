"""`triolet serve`: the OpenAI-compatible server, until a signal."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

import trio
from cyclopts import Parameter

from triolet.cli import settings
from triolet.cli.console import error_console
from triolet.cli.log_output import configure_logging
from triolet.cli.progress import StartProgress
from triolet.cli.settings import (
    CacheSettings,
    LimitSettings,
    LogSettings,
    ModelSettings,
    RunnerSettings,
    SchedulerSettings,
    ServerSettings,
    Sources,
    engine_config,
    serve_runner,
)
from triolet.cli.summary import curl_command, engine_summary, ready_line
from triolet.config import EngineConfig, ServerConfig
from triolet.engine.client import EngineClient
from triolet.telemetry.log import log_event

logger = logging.getLogger(__name__)


def serve(
    model: ModelSettings = settings.DEFAULT_MODEL,
    *,
    cache: CacheSettings = settings.DEFAULT_CACHE,
    scheduler: SchedulerSettings = settings.DEFAULT_SCHEDULER,
    runner: RunnerSettings = settings.DEFAULT_RUNNER,
    limits: LimitSettings = settings.DEFAULT_LIMITS,
    server: ServerSettings = settings.DEFAULT_SERVER,
    log: LogSettings = settings.DEFAULT_LOG,
    sources: Annotated[Sources, Parameter(parse=False)],
) -> int:
    """Serve a model over an OpenAI-compatible HTTP API.

    SIGTERM and Ctrl-C let running requests end within the grace; a second one ends at once.
    """
    config = engine_config(model, cache, scheduler, serve_runner(runner, sources), limits)
    server.check()
    configure_logging(log.log_format, log.log_level)
    return trio.run(_serve, config, server)


async def _serve(config: EngineConfig, server: ServerConfig) -> int:
    """Serve until a signal; returns the exit code. A checkpoint."""
    from triolet.engine.open_engine import open_engine
    from triolet.server.serve import serve as serve_http

    console = error_console()
    with StartProgress(console) as progress:

        @asynccontextmanager
        async def open_and_tell(config: EngineConfig) -> AsyncGenerator[EngineClient]:
            async with open_engine(config=config, progress=progress) as engine:
                progress.stop()
                for line in engine_summary(config, engine.facts, engine.info):
                    console.print(line, markup=False)
                yield engine

        def on_ready(url: str, engine: EngineClient) -> None:
            console.print(f"try     {curl_command(url, engine.facts, server)}", markup=False)
            # On standard output, flushed: a program that started us can wait for this line.
            print(ready_line(url, engine.facts), flush=True)
            log_event(logger, logging.DEBUG, "server_ready", url=url, model=engine.facts.name)

        return await serve_http(config, server, engine_factory=open_and_tell, on_ready=on_ready)
