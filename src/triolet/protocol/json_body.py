"""Request bytes to plain values: JSON as RFC 8259 has it, and nothing looser.

orjson refuses bad UTF-8, a byte order mark, lone surrogates, NaN, Infinity and numbers that
overflow a double. Added here: a limit of depth before anything is parsed, duplicate keys
(RFC 8259 section 4 calls their meaning unpredictable), and integers that orjson would turn
into doubles.
"""

from __future__ import annotations

import json
import re

import orjson

from triolet.errors import InvalidRequest

JSON_DEPTH_MAX = 64
"""No request of the protocol nests deeper than a JSON schema does; vLLM has the same limit."""

CLIP_CHARS = 100
"""What an error may quote of the input: enough to recognise it, too little to flood a log."""

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
_INT_MAX = 2**64 - 1
_INT_MIN = -(2**63)


def clip(value: object) -> str:
    """A short, printable quotation of a value for an error message."""
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "replace").decode()
    quoted = text if len(text) <= CLIP_CHARS else f"{text[:CLIP_CHARS]}... ({len(text)} characters)"
    return repr(quoted) if isinstance(value, str) else quoted


def parse_object(body: bytes) -> dict[str, object]:
    """Parse a request body that must be one JSON object.

    Takes about 10 ms per MB: call it in a worker thread for large bodies.

    Args:
        body: The whole body.

    Returns:
        The object, made of dict, list, str, int, float, bool and None.

    Raises:
        InvalidRequest: It is no JSON object that every parser would read alike.
    """
    if not body.strip():
        raise _bad("the request body is empty; send a JSON object")
    _check_depth(body)
    try:
        # orjson decides validity; the second parser only looks for what orjson overlooks.
        orjson.loads(body)
        value: object = json.loads(body, object_pairs_hook=_unique, parse_int=_integer)
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


def _check_depth(body: bytes) -> None:
    depth = 0
    for match in _TOKEN.finditer(body):
        first = match[0][:1]
        if first in b"[{":
            depth += 1
            if depth > JSON_DEPTH_MAX:
                raise _bad(f"the request body nests deeper than {JSON_DEPTH_MAX} levels")
        elif first in b"]}":
            depth -= 1


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise InvalidRequest(
                    f"the request body has the key {clip(key)} twice in one object",
                    param=key[:CLIP_CHARS],
                    code="invalid_json",
                )
            seen.add(key)
    return out


def _integer(digits: str) -> int:
    # 20 digits hold every 64-bit integer; int() of a million digits would take seconds.
    if len(digits) > 20 or not _INT_MIN <= (value := int(digits)) <= _INT_MAX:
        raise _bad(f"the integer {clip(digits)} does not fit in 64 bits")
    return value


def _reason(error: orjson.JSONDecodeError) -> str:
    return f"{error.msg} (line {error.lineno}, column {error.colno})"


def _bad(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_json")
