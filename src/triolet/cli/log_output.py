"""How log records look: structlog renders what the library logs through `logging`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal, TextIO

import structlog

from triolet.telemetry.log import Event

LogFormat = Literal["auto", "pretty", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


def configure_logging(
    log_format: LogFormat = "auto", level: LogLevel = "info", stream: TextIO | None = None
) -> None:
    """Send the records of the whole process to a stream, one line each.

    Replaces the handlers of the root logger.

    Args:
        log_format: "pretty" for people, "json" for machines, "auto" by whether the stream is
            a terminal.
        level: Of triolet's own records; those of other libraries begin at "warning".
        stream: Standard error if not given.
    """
    target = stream or sys.stderr
    as_json = log_format == "json" or (log_format == "auto" and not target.isatty())
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                _unpack_event,
                structlog.contextvars.merge_contextvars,
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt="iso" if as_json else "%H:%M:%S", utc=as_json),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(as_json, target),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("triolet").setLevel(level.upper())
    logging.captureWarnings(capture=True)


def _renderers(as_json: bool, stream: TextIO) -> list[structlog.types.Processor]:
    if as_json:
        return [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(sort_keys=False),
        ]
    return [structlog.dev.ConsoleRenderer(colors=stream.isatty(), pad_event_to=0)]


def _unpack_event(
    logger: object, method: str, event_dict: MutableMapping[str, Any]
) -> Mapping[str, Any]:
    """Make fields of an `Event` fields of the line."""
    record: logging.LogRecord = event_dict["_record"]
    if isinstance(record.msg, Event):
        event_dict["event"] = record.msg.name
        event_dict.update(record.msg.fields)
    return event_dict
