"""Structured log lines over the standard library: one event name each, with fields.

The library logs to loggers named after its modules and configures nothing. Whoever embeds it
sees "event key=value" lines; the command line renders the same records with structlog
(`triolet.cli.log_output`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import attrs
from typing_extensions import override


@attrs.frozen
class Event:
    """What a log record says: a name that never changes, and what differs each time."""

    name: str
    fields: Mapping[str, object]

    @override
    def __str__(self) -> str:
        """The line for handlers that know nothing of events."""
        return " ".join([self.name, *(f"{key}={value!r}" for key, value in self.fields.items())])


def log_event(logger: logging.Logger, level: int, event: str, /, **fields: object) -> None:
    """Log an event.

    Args:
        logger: Of the module that logs.
        level: As in `logging`.
        event: Its name, in the past tense: "server_started".
        **fields: Plain values; units belong into the names.
    """
    if logger.isEnabledFor(level):
        logger.log(level, Event(event, fields), stacklevel=2)
