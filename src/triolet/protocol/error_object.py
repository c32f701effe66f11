"""The OpenAI error object: one shape for every failure, bounded whatever the input was."""

from __future__ import annotations

from triolet.errors import TrioletError
from triolet.protocol import sse

MESSAGE_CHARS_MAX = 1000
PARAM_CHARS_MAX = 160
"""A character takes at most 6 bytes of JSON: a body is under 8 KB whatever it quotes."""

_TYPES: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    411: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    499: "request_cancelled",
    503: "service_unavailable_error",
    504: "timeout_error",
    505: "invalid_request_error",
}


def error_type(status: int) -> str:
    """`error.type` of an HTTP status."""
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def error_object(
    status: int, message: str, code: str, param: str | None = None
) -> dict[str, object]:
    """The value of a failure, as an HTTP body or as an event of a stream."""
    return {
        "error": {
            "message": _cut(message, MESSAGE_CHARS_MAX),
            "type": error_type(status),
            "param": None if param is None else _cut(param, PARAM_CHARS_MAX),
            "code": code,
        }
    }


def error_event(error: TrioletError) -> bytes:
    """How a stream that has begun ends when its request fails: the error, then [DONE]."""
    value = error_object(error.http_status, error.message, error.code, error.param)
    return sse.event(value) + sse.DONE


def cut_message(text: str) -> str:
    """A message that is short enough for a body."""
    return _cut(text, MESSAGE_CHARS_MAX)


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 3]}..."
