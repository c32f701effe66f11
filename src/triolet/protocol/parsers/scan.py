"""Ends of things in a text that comes in pieces: each looks at a character once.

Nothing here backtracks: a model's text may be hostile, and it is read on the run loop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import cast

_JSON_STEP = re.compile(r'["\\{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


class LiteralEnd:
    """The end of the first occurrence of a marker.

    Args:
        marker: Literal text, at least two characters.
    """

    def __init__(self, marker: str) -> None:
        assert len(marker) > 1, "a marker of one character needs no memory"
        self._marker = marker
        self._tail = ""

    def find(self, text: str, at: int) -> int:
        """Index in `text` behind the marker, looking from `at`; -1 if it did not end yet."""
        keep = len(self._marker) - 1
        if self._tail:
            window = self._tail + text[at : at + keep]
            found = window.find(self._marker)
            if found >= 0:
                return at + found + len(self._marker) - len(self._tail)
        found = text.find(self._marker, at)
        if found >= 0:
            return found + len(self._marker)
        self._tail = (self._tail + text[max(at, len(text) - keep) :])[-keep:]
        return -1


class JsonEnd:
    """The end of one JSON object or array, by its brackets; strings are understood."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def find(self, text: str, at: int) -> int:
        """Index in `text` behind the value, which begins or goes on at `at`; -1 if open."""
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            step = (_IN_STRING if self._in_string else _JSON_STEP).search(text, at)
            if step is None:
                return -1
            at = step.end()
            match step[0]:
                case "\\":
                    self._escaped = self._in_string
                case '"':
                    self._in_string = not self._in_string
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if self._depth <= 0:
                        return at
        return -1


def held_back(text: str, at: int, markers: tuple[str, ...]) -> int:
    """Characters at the end of `text[at:]` that may be the beginning of a marker."""
    longest = 0
    for marker in markers:
        begin = text.find(marker[0], max(at, len(text) - len(marker) + 1))
        while begin >= 0 and not marker.startswith(text[begin:]):
            begin = text.find(marker[0], begin + 1)
        if begin >= 0:
            longest = max(longest, len(text) - begin)
    return longest


def load_json(text: str) -> object:
    """A JSON value as RFC 8259 has it.

    Raises:
        ValueError: It is none, or nests too deep to be one.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deep") from None


def load_object(text: str) -> Mapping[str, object]:
    """A JSON object.

    Raises:
        ValueError: It is none.
    """
    value = load_json(text)
    if not isinstance(value, dict):
        raise ValueError("no object")
    return cast("dict[str, object]", value)


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
