"""One HTTP answer as a value, and errors as answers. The one table from errors to HTTP."""

from __future__ import annotations

import math

import attrs

from triolet.errors import InvalidRequest, TrioletError
from triolet.protocol import sse
from triolet.protocol.anthropic_answer import anthropic_error
from triolet.protocol.error_object import error_object

Headers = tuple[tuple[bytes, bytes], ...]

JSON = b"application/json"
RETRY_AFTER_DEFAULT_S = 1.0


@attrs.frozen
class Response:
    """An answer in one piece.

    Attributes:
        status: HTTP status.
        body: Its bytes.
        content_type: Of the body.
        headers: More headers, names in lower case.
    """

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: Headers = ()

    def with_headers(self, *headers: tuple[bytes, bytes]) -> Response:
        """The same answer with more headers."""
        return attrs.evolve(self, headers=(*self.headers, *headers))


class HttpRefused(InvalidRequest):
    """The request breaks a rule of HTTP or of this server, not of the protocol in its body.

    Args:
        status: The HTTP status that says so.
        message: Cause and fix.
        code: Machine-readable name.
        headers: Headers that the status calls for, such as `allow`.
    """

    def __init__(self, status: int, message: str, code: str, headers: Headers = ()) -> None:
        super().__init__(message, code=code)
        self.http_status = status
        self.headers = headers


def json_response(value: object, status: int = 200, headers: Headers = ()) -> Response:
    """A JSON answer."""
    return Response(status, sse.dump(value), JSON, headers)


def error_response(error: TrioletError, *, anthropic: bool = False) -> Response:
    """The answer to a failed request.

    `x-should-retry: false` keeps the SDKs from repeating what can only fail again;
    `retry-after` tells when a repetition makes sense.

    Args:
        error: What it failed with.
        anthropic: In the shape of Anthropic's API instead of OpenAI's.
    """
    headers: list[tuple[bytes, bytes]] = []
    if not error.retryable:
        headers.append((b"x-should-retry", b"false"))
    elif error.http_status in (429, 503):
        seconds = error.retry_after_s or RETRY_AFTER_DEFAULT_S
        headers.append((b"retry-after", str(math.ceil(seconds)).encode()))
    if isinstance(error, HttpRefused):
        headers.extend(error.headers)
    if anthropic:
        value = anthropic_error(error)
    else:
        value = error_object(error.http_status, error.message, error.code, error.param)
    return json_response(value, error.http_status, tuple(headers))
