"""Request bytes to plain values: JSON as RFC 8259 has it, and nothing looser.

orjson refuses bad UTF-8, a byte order mark, lone surrogates, NaN, Infinity and numbers that
overflow a double; its own recursion is bounded. Added here, by one scan of the structure: a
limit of depth, and no duplicate keys (RFC 8259 section 4 calls their meaning unpredictable).

The scan is a Python loop on purpose. It runs in a worker thread for large bodies, where a
single long call into C would hold the interpreter, and with it the run loop, for its whole
length.
"""

from __future__ import annotations

import re

import orjson

from triolet.errors import InvalidRequest

JSON_DEPTH_MAX = 64
"""No request of the protocol nests deeper than a JSON schema does; vLLM has the same limit."""

CLIP_CHARS = 100
"""What an error may quote of the input: enough to recognise it, too little to flood a log."""

SCAN_BYTES = 1 << 20
"""Bytes looked at in one call into C, about 7 ms: so long the interpreter is held."""

_BETWEEN = re.compile(rb'[^"{}\[\]:]*')
_BACKSLASH = ord("\\")


def clip(value: object) -> str:
    """A short, printable quotation of a value for an error message."""
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "replace").decode()
    quoted = text if len(text) <= CLIP_CHARS else f"{text[:CLIP_CHARS]}... ({len(text)} characters)"
    return repr(quoted) if isinstance(value, str) else quoted


def parse_object(body: bytes) -> dict[str, object]:
    """Parse a request body that must be one JSON object.

    Takes up to 0.3 s per MB, typically a tenth of that: call it in a worker thread for large bodies.

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
        value: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _bad(f"the request body is not valid JSON: {_reason(error)}") from None
    if not isinstance(value, dict):
        raise _bad(f"the request body must be a JSON object, got {json_type(value)}")
    _check_structure(body)
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


def _check_structure(body: bytes) -> None:
    """Check depth and keys of a body that is known to be valid JSON."""
    keys: list[set[bytes] | None] = []  # of every open object; None for an open array
    last_string = b""
    position = 0
    while position < len(body):
        between = _BETWEEN.match(body, position, position + SCAN_BYTES)
        assert between is not None, "the pattern matches nothing, too"
        position = between.end()
        match body[position : position + 1]:
            case b'"':
                end = _string_end(body, position + 1)
                last_string = body[position + 1 : end]
                position = end
            case b":":
                own = keys[-1]
                assert own is not None, "a colon belongs to an object"
                _add_key(own, last_string)
            case b"{" | b"[" as opening:
                keys.append(set() if opening == b"{" else None)
                if len(keys) > JSON_DEPTH_MAX:
                    raise _bad(f"the request body nests deeper than {JSON_DEPTH_MAX} levels")
            case b"}" | b"]":
                keys.pop()
            case _:
                continue  # the window ended between two of these
        position += 1


def _string_end(body: bytes, start: int) -> int:
    """Index of the quote that ends a string: the first with an even run of backslashes."""
    while True:
        end = body.index(b'"', start)
        before = end - 1
        while body[before] == _BACKSLASH:
            before -= 1
        if (end - before) % 2 == 1:
            return end
        start = end + 1


def _add_key(keys: set[bytes], raw: bytes) -> None:
    # The same key may be written with and without escapes.
    key = raw if b"\\" not in raw else str(orjson.loads(b'"%b"' % raw)).encode()
    if key in keys:
        name = key.decode()
        raise InvalidRequest(
            f"the request body has the key {clip(name)} twice in one object",
            param=name[:CLIP_CHARS],
            code="invalid_json",
        )
    keys.add(key)


def _reason(error: orjson.JSONDecodeError) -> str:
    return f"{error.msg} (line {error.lineno}, column {error.colno})"


def _bad(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_json")
