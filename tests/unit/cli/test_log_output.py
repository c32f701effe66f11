import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from typing_extensions import override

from triolet.cli.log_output import configure_logging
from triolet.telemetry.log import log_event

logger = logging.getLogger("triolet.some.module")


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("triolet")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    logging.captureWarnings(capture=False)


class Terminal(io.StringIO):
    @override
    def isatty(self) -> bool:
        return True


def json_lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_event_is_one_json_object_with_its_fields() -> None:
    out = io.StringIO()
    configure_logging("json", "info", out)
    log_event(logger, logging.INFO, "request_ended", request_id="r-1", tokens=3, event_count=1)
    (line,) = json_lines(out)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "request_ended",
        "request_id": "r-1",
        "tokens": 3,
        "event_count": 1,
        "level": "info",
        "logger": "triolet.some.module",
    }


def test_plain_record_of_a_library_is_rendered_too() -> None:
    out = io.StringIO()
    configure_logging("json", "info", out)
    logging.getLogger("other").warning("disk at %d%%", 91)
    logging.getLogger("other").info("not shown: other libraries begin at warning")
    (line,) = json_lines(out)
    assert line["event"] == "disk at 91%"


def test_exception_stays_on_the_line() -> None:
    out = io.StringIO()
    configure_logging("json", "info", out)
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError:
        logger.exception("failed")
    (line,) = json_lines(out)
    assert "ZeroDivisionError: by zero" in line["exception"]


def test_level_is_for_our_own_records() -> None:
    out = io.StringIO()
    configure_logging("json", "warning", out)
    logger.info("hidden")
    log_event(logger, logging.DEBUG, "hidden_too")
    logger.warning("shown")
    assert [line["event"] for line in json_lines(out)] == ["shown"]


@pytest.mark.parametrize(("terminal", "as_json"), [(True, False), (False, True)])
def test_auto_is_pretty_on_a_terminal_only(terminal: bool, as_json: bool) -> None:
    out = Terminal() if terminal else io.StringIO()
    configure_logging("auto", "info", out)
    log_event(logger, logging.INFO, "server_started", port=1)
    assert out.getvalue().startswith("{") is as_json
    assert "server_started" in out.getvalue()


def test_pretty_without_a_terminal_has_no_colours() -> None:
    out = io.StringIO()
    configure_logging("pretty", "info", out)
    log_event(logger, logging.INFO, "server_started", port=1)
    assert "\x1b" not in out.getvalue()
    assert "port=1" in out.getvalue()


def test_python_warning_is_a_record() -> None:
    out = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure_logging("json", "info", out)
        warnings.warn("old option", UserWarning, stacklevel=1)
        logging.captureWarnings(capture=False)
    (line,) = json_lines(out)
    assert "old option" in line["event"]


def test_configuring_twice_does_not_double_the_lines() -> None:
    out = io.StringIO()
    configure_logging("json", "info", out)
    configure_logging("json", "info", out)
    logger.info("once")
    assert len(json_lines(out)) == 1
