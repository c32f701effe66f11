"""Error objects stay small and valid whatever they quote."""

from __future__ import annotations

import json

from hypothesis import given, strategies as st

from triolet.errors import InvalidRequest, NotServing
from triolet.protocol import sse
from triolet.protocol.error_object import error_event, error_object

BODY_BYTES_MAX = 8192


@given(st.text(max_size=40), st.integers(1, 4000), st.text(max_size=300))
def test_body_is_valid_json_and_under_8_kb(text: str, times: int, param: str) -> None:
    body = sse.dump(error_object(400, text * times, "code", param))
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    assert len(body) < BODY_BYTES_MAX
    for worst in ("\x00", "\U0001f600", "é"):
        value = error_object(400, worst * 100_000, "code", worst * 1000)
        assert len(sse.dump(value)) < BODY_BYTES_MAX


def test_event_ends_the_stream() -> None:
    event = error_event(InvalidRequest("bad", param="x"))
    assert event.endswith(b"\n\ndata: [DONE]\n\n")
    value = json.loads(event.split(b"\n\n")[0].removeprefix(b"data: "))
    assert value["error"] == {
        "message": "bad",
        "type": "invalid_request_error",
        "param": "x",
        "code": "invalid_value",
    }


def test_type_follows_the_status() -> None:
    error = NotServing("later")
    value = error_object(error.http_status, error.message, error.code)
    assert value["error"] == {
        "message": "later",
        "type": "service_unavailable_error",
        "param": None,
        "code": "not_serving",
    }
