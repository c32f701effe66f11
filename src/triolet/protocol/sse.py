"""Server-sent events as bytes (WHATWG HTML, section 9.2): what OpenAI's clients read."""

from __future__ import annotations

import orjson

DONE = b"data: [DONE]\n\n"
"""The terminator of every OpenAI-shaped stream, after an error too."""

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: keeps proxies from closing a quiet stream, and clients ignore it."""


def event(value: object) -> bytes:
    """One `data:` event holding a JSON value."""
    return b"data: " + dump(value) + b"\n\n"


def named_event(name: str, value: object) -> bytes:
    """One event with a name, as Anthropic's and the Responses API's clients read them."""
    return b"event: " + name.encode() + b"\ndata: " + dump(value) + b"\n\n"


def dump(value: object) -> bytes:
    """JSON bytes of a value. Cannot fail on text: lone surrogates become U+FFFD or "?".

    A surrogate cannot come out of a detokenizer, but an error while encoding an answer
    would end a stream, so it is handled rather than excluded.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_scrub(value))


def _scrub(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_scrub(key): _scrub(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scrub(item) for item in value]
    return value
