"""`triolet config show`: the settings in force, and where each comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import attrs
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from triolet.cli import settings
from triolet.cli.settings import (
    CacheSettings,
    LimitSettings,
    LogSettings,
    ModelSettings,
    RunnerSettings,
    SchedulerSettings,
    ServerSettings,
    Sources,
    serve_runner,
)

SECRETS = frozenset({"api_keys"})

config_app = App(name="config", help="Look at the settings of `triolet serve`.")


@config_app.command
def show(
    model: ModelSettings = settings.DEFAULT_MODEL,
    *,
    cache: CacheSettings = settings.DEFAULT_CACHE,
    scheduler: SchedulerSettings = settings.DEFAULT_SCHEDULER,
    runner: RunnerSettings = settings.DEFAULT_RUNNER,
    limits: LimitSettings = settings.DEFAULT_LIMITS,
    server: ServerSettings = settings.DEFAULT_SERVER,
    log: LogSettings = settings.DEFAULT_LOG,
    as_json: Annotated[
        bool, Parameter(name="--json", negative="", help="Print JSON instead of a table.")
    ] = False,
    sources: Annotated[Sources, Parameter(parse=False)],
) -> None:
    """Show every setting in force and where it comes from; start nothing.

    Takes the options of `triolet serve`.
    """
    runner = serve_runner(runner, sources)
    settings.engine_config(model, cache, scheduler, runner, limits)
    server.check()
    values: dict[str, attrs.AttrsInstance] = {
        "model": model,
        "cache": cache,
        "scheduler": scheduler,
        "runner": runner,
        "limits": limits,
        "server": server,
        "log": log,
    }
    rows = {group: _rows(value, sources) for group, value in values.items()}
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        Console(soft_wrap=True).print(_table(rows))


def _rows(group: attrs.AttrsInstance, sources: Sources) -> dict[str, dict[str, Any]]:
    """Setting -> its value as JSON can hold it, and where it comes from."""
    rows: dict[str, dict[str, Any]] = {}
    for field in attrs.fields(type(group)):
        value = getattr(group, field.name)
        if isinstance(value, Path):
            value = str(value)
        if field.name in SECRETS and value:
            value = f"{len(value)} given"
        rows[field.name] = {"value": value, "from": sources.origin(field.name)}
    return rows


def _table(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Table:
    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for group, settings_of_group in rows.items():
        table.add_row(Text(f"[{group}]", style="bold"))
        for name, row in settings_of_group.items():
            style = "dim" if row["from"] == "default" else ""
            value = json.dumps(row["value"])
            table.add_row(Text(f"  {name}"), Text(value), Text(row["from"]), style=style)
    return table
