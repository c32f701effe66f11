"""Settings of the commands: a flag beats `TRIOLET_*`, which beats the file, then the default.

The groups of `EngineConfig` and `ServerConfig` are given to cyclopts as they are: every field
is a flag, a variable and a TOML key of the same name, and its docstring is the help.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import attrs
from cyclopts import App, ArgumentCollection, Parameter
from cyclopts.config import Dict, Env

from triolet.cli.log_output import LogFormat, LogLevel
from triolet.config import (
    CacheConfig,
    EngineConfig,
    LimitConfig,
    ModelConfig,
    RunnerConfig,
    SchedulerConfig,
    ServerConfig,
    triolet_variables,
    unknown_setting,
)
from triolet.errors import ConfigError
from triolet.setting_types import describe, fits

ENV_PREFIX = "TRIOLET_"
OTHER_VARIABLES = frozenset({"TRIOLET_CACHE", "TRIOLET_CONFIG", "TRIOLET_SYSTEM"})
"""Variables that are no settings: the cache directory, the settings file, `chat --system`."""


@attrs.frozen(kw_only=True)
class LogConfig:
    """What is logged, and how it looks.

    Attributes:
        log_format: "pretty" for people, "json" for machines; "auto" takes "pretty" on a
            terminal.
        log_level: Records below this level are not shown.
    """

    log_format: LogFormat = "auto"
    log_level: LogLevel = "info"


GROUPS: Mapping[str, type[attrs.AttrsInstance]] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "runner": RunnerConfig,
    "limits": LimitConfig,
    "server": ServerConfig,
    "log": LogConfig,
}
"""TOML table -> settings in it. Tables only sort: a key may also stand at the top."""

ModelSettings = Annotated[ModelConfig, Parameter(name="*", group="Model")]
CacheSettings = Annotated[CacheConfig, Parameter(name="*", group="KV cache")]
SchedulerSettings = Annotated[SchedulerConfig, Parameter(name="*", group="Scheduler")]
RunnerSettings = Annotated[RunnerConfig, Parameter(name="*", group="Runner")]
LimitSettings = Annotated[LimitConfig, Parameter(name="*", group="Limits of one request")]
ServerSettings = Annotated[ServerConfig, Parameter(name="*", group="Server")]
LogSettings = Annotated[LogConfig, Parameter(name="*", group="Logging")]

DEFAULT_MODEL = ModelConfig()
DEFAULT_CACHE = CacheConfig()
DEFAULT_SCHEDULER = SchedulerConfig()
DEFAULT_RUNNER = RunnerConfig()
DEFAULT_LIMITS = LimitConfig()
DEFAULT_SERVER = ServerConfig()
DEFAULT_LOG = LogConfig()


def setting_names() -> frozenset[str]:
    """Every setting of every group."""
    return frozenset(field.name for group in GROUPS.values() for field in attrs.fields(group))


class Sources:
    """Where the settings of one command line come from.

    `chain` is given to cyclopts, which calls its parts in order: each fills in what the ones
    before it left open, and the last notes who filled in what.

    Args:
        path: The TOML file, if one was named.

    Raises:
        ConfigError: The file cannot be read, or names a setting that does not exist.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._in_file = {} if path is None else read_settings(path)
        self._origins: dict[str, str] = {}

    @property
    def chain(self) -> tuple[Any, ...]:
        """The parts, in order of precedence."""
        return (Env(ENV_PREFIX, command=False), self._fill_from_file, self._note)

    def origin(self, setting: str) -> str:
        """Where a setting came from: "--port", "TRIOLET_PORT", the file's name or "default"."""
        return self._origins.get(setting, "default")

    def was_given(self, setting: str) -> bool:
        """Whether a setting was set by anybody."""
        return setting in self._origins

    def _fill_from_file(
        self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection
    ) -> None:
        # One file serves all commands: what this one does not know was checked on reading.
        known = {name for argument in arguments for name in map(_setting_of, argument.names)}
        mine = {name: value for name, value in self._in_file.items() if name in known}
        Dict(mine, source=str(self._path), use_commands_as_keys=False)(app, commands, arguments)

    def _note(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        for argument in arguments:
            for token in argument.tokens:
                match token.source:
                    case "cli":
                        origin = token.keyword or "the command line"
                    case "env":
                        origin = token.keyword or ENV_PREFIX
                    case _:
                        origin = token.source
                self._origins[_setting_of(argument.name)] = origin


def _setting_of(flag: str) -> str:
    """Name of the setting that a flag sets: "--logits-processors.name" is one of many."""
    return flag.lstrip("-").partition(".")[0].replace("-", "_")


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a TOML file, tables of groups taken apart.

    Raises:
        ConfigError: It cannot be read, is not TOML, or names what does not exist.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the settings file {path}: {error.strerror}", param="config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", param="config") from error
    settings: dict[str, Any] = {}
    for name, value in content.items():
        is_table = name in GROUPS and isinstance(value, dict)
        for key, item in value.items() if is_table else [(name, value)]:
            if key in settings:
                raise ConfigError(f"{path} sets {key} twice", param=key)
            settings[key] = item
            owner = _group_of(key)
            if is_table and owner not in (None, name):
                raise ConfigError(
                    f"{path}: {key} belongs into the table [{owner}], not into [{name}]", param=key
                )
    for key, value in settings.items():
        owner = _group_of(key)
        if owner is None:
            raise ConfigError(f"{path}: {unknown_setting(key, _names())}", param=key)
        # Nothing is converted: `port = 1.5` and `batch_invariant = "yes"` are mistakes.
        wanted = get_type_hints(GROUPS[owner])[key]
        if not _fits_toml(value, wanted):
            raise ConfigError(f"{path}: {key} must be {describe(wanted)}, got {value!r}", param=key)
    return settings


def _group_of(setting: str) -> str | None:
    for name, group in GROUPS.items():
        if setting in {field.name for field in attrs.fields(group)}:
            return name
    return None


def _fits_toml(value: object, wanted: Any) -> bool:  # noqa: ANN401  a type
    """Whether a TOML value is of a type; TOML writes paths as strings and tuples as arrays."""
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(value, str) and fits(Path(value), wanted):
        return True
    return fits(value, wanted)


def _names() -> dict[str, None]:
    return dict.fromkeys(sorted(setting_names()))


def stray_variables() -> list[str]:
    """One sentence for each `TRIOLET_*` variable that sets nothing: most likely a typo."""
    known = setting_names()
    sentences: list[str] = []
    for variable in triolet_variables():
        name = variable.removeprefix(ENV_PREFIX).lower()
        if variable not in OTHER_VARIABLES and name not in known:
            sentences.append(f"{variable} is ignored: {unknown_setting(name, _names())}")
    return sentences


def engine_config(
    model: ModelConfig,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    runner: RunnerConfig,
    limits: LimitConfig,
) -> EngineConfig:
    """The groups as one checked config.

    Raises:
        ConfigError: A value is out of range.
    """
    config = EngineConfig(
        model=model, cache=cache, scheduler=scheduler, runner=runner, limits=limits
    )
    config.check()
    return config


def serve_runner(runner: RunnerConfig, sources: Sources) -> RunnerConfig:
    """The runner settings of a server: its worker is a process unless somebody says otherwise.

    A process can be killed and replaced, has its own GIL, and may tune torch's threads.
    """
    return runner if sources.was_given("runner") else attrs.evolve(runner, runner="process")
