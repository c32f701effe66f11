import logging

import pytest

from triolet.telemetry.log import Event, log_event

logger = logging.getLogger("triolet.some.module")


def test_plain_handler_sees_name_and_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="triolet"):
        log_event(logger, logging.INFO, "request_ended", tokens=3, why="stop", name="odd")
    (record,) = caplog.records
    assert record.getMessage() == "request_ended tokens=3 why='stop' name='odd'"
    assert record.msg == Event("request_ended", {"tokens": 3, "why": "stop", "name": "odd"})
    assert record.funcName == "test_plain_handler_sees_name_and_fields"


def test_disabled_level_makes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="triolet"):
        log_event(logger, logging.INFO, "request_ended")
    assert not caplog.records
