"""Request bytes to plain values: JSON as RFC 8259 has it, and nothing looser.

orjson refuses bad UTF-8, a byte order mark, lone surrogates, NaN, Infinity and numbers that
overflow a double; `json_scan` goes before it and refuses what nests too deep, holds too much or
has a key twice.

Large bodies are parsed in a worker thread, and long arrays of numbers in pieces: one call of
orjson holds the interpreter, and with it the run loop, for its whole length.
"""

from __future__ import annotations

from typing import Any

import orjson

from triolet.errors import InvalidRequest
from triolet.protocol.json_scan import FlatArray, ScanError, scan

CLIP_CHARS = 100
"""What an error may quote of the input: enough to recognise it, too little to flood a log."""

PIECE_BYTES = 128 << 10
"""Of an array of numbers that are parsed in one call, about 1 ms."""


def clip(value: object) -> str:
    """A short, printable quotation of a value for an error message."""
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "replace").decode()
    quoted = text if len(text) <= CLIP_CHARS else f"{text[:CLIP_CHARS]}... ({len(text)} characters)"
    return repr(quoted) if isinstance(value, str) else quoted


def parse_object(body: bytes) -> dict[str, object]:
    """Parse a request body that must be one JSON object.

    Takes up to 0.3 s per MB, typically a tenth of that: call it in a worker thread for large
    bodies.

    Args:
        body: The whole body.

    Returns:
        The object, made of dict, list, str, int, float, bool and None.

    Raises:
        InvalidRequest: It is no JSON object that every parser would read alike.
    """
    if not body.strip():
        raise _bad("the request body is empty; send a JSON object")
    try:
        arrays = scan(body, PIECE_BYTES)
    except ScanError as error:
        raise _refused(error) from None
    try:
        value: object = orjson.loads(_without(body, arrays))
        for array in arrays:
            _fill(value, array, body)
    except orjson.JSONDecodeError as error:
        raise _bad(f"the request body is not valid JSON: {_reason(error)}") from None
    if not isinstance(value, dict):
        raise _bad(f"the request body must be a JSON object, got {json_type(value)}")
    return value


def json_type(value: object) -> str:
    """The JSON name of a parsed value's type, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, (list, tuple)) else "an object"


def _without(body: bytes, arrays: list[FlatArray]) -> bytes:
    """The text with these arrays empty."""
    if not arrays:
        return body
    parts: list[bytes] = []
    position = 0
    for array in arrays:
        parts.append(body[position : array.start])
        position = array.end
    return b"".join([*parts, body[position:]])


def _fill(value: Any, array: FlatArray, body: bytes) -> None:  # noqa: ANN401  parsed JSON
    """Parse one array in pieces, into the empty list that stands for it."""
    for step in array.path:
        value = value[step]
    assert value == [], "it was left out"
    start = array.start
    while start <= array.end:
        comma = body.find(b",", start + PIECE_BYTES, array.end)
        end = array.end if comma < 0 else comma
        piece = body[start:end]
        # Nothing between two brackets is an array, nothing beside a comma is a fault.
        if not piece.strip() and (start > array.start or end < array.end):
            raise _bad("the request body is not valid JSON: an array has a comma too many")
        value.extend(orjson.loads(b"[%b]" % piece))
        start = end + 1


def _refused(error: ScanError) -> InvalidRequest:
    if error.key is None:
        return InvalidRequest(f"the request body {error.message}", code=error.code)
    return InvalidRequest(
        f"the request body {error.message.format(clip(error.key))}",
        param=error.key[:CLIP_CHARS],
        code=error.code,
    )


def _reason(error: orjson.JSONDecodeError) -> str:
    return f"{error.msg} (line {error.lineno}, column {error.colno})"


def _bad(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_json")
