"""One pass over the bytes of a JSON text before it is parsed: what a parser does not refuse.

The pass checks depth, duplicate keys (RFC 8259 section 4 calls their meaning unpredictable) and
how much the text holds, and it finds long arrays of numbers, which can then be parsed in pieces.

It is a Python loop on purpose. It runs in a worker thread for large bodies, where a single long
call into C would hold the interpreter, and with it the run loop, for its whole length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import orjson

DEPTH_MAX = 64
"""No request of the protocol nests deeper than a JSON schema does; vLLM has the same limit."""

ITEMS_MAX = 1 << 17
"""Values in one text, keys too. A million of them take a parser 0.1 s, in which nothing else
runs; the longest chat that is taken (8192 messages) has some 40000."""

LONG_FIELDS = frozenset({b"prompt", b"tokens"})
"""Fields of the top object whose numbers do not count: token ids, of which there may be many."""

SCAN_BYTES = 1 << 18
"""Bytes looked at in one call into C, up to 5 ms: so long the interpreter is held."""

_BETWEEN = re.compile(rb'[^"{}\[\]:]*+')
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)


class ScanError(Exception):
    """The text is not taken; the message goes on after "the request body ".

    Attributes:
        message: What is wrong.
        key: The key at fault, if it is one.
        code: Machine-readable name.
    """

    def __init__(self, message: str, key: str | None = None, code: str = "invalid_json") -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.code = code


@dataclass(frozen=True, slots=True)
class FlatArray:
    """A long array without strings, objects and arrays in it.

    Attributes:
        path: Keys and indexes that lead to it.
        start: Position of its first byte after the bracket.
        end: Position of the closing bracket.
    """

    path: tuple[str | int, ...]
    start: int
    end: int


@dataclass(slots=True)
class _Open:
    """An object or array that is not closed yet."""

    start: int
    keys: set[bytes] | None
    key: bytes = b""
    index: int = 0
    flat: bool = True


@dataclass(slots=True)
class _Scanner:
    body: bytes
    flat_bytes: int
    stack: list[_Open] = field(default_factory=list[_Open])
    found: list[FlatArray] = field(default_factory=list[FlatArray])
    items: int = 0
    last_string: bytes = b""

    def run(self) -> None:
        body, position = self.body, 0
        while position < len(body):
            between = _BETWEEN.match(body, position, position + SCAN_BYTES)
            assert between is not None, "the pattern matches nothing, too"
            if self.stack and self.stack[-1].keys is None:
                self._pass_items(body.count(b",", position, between.end()))
            position = between.end()
            match body[position : position + 1]:
                case b'"':
                    self._count_items(1)
                    end = _string_end(body, position + 1)
                    self.last_string = body[position + 1 : end]
                    if self.stack:
                        self.stack[-1].flat = False
                    position = end
                case b":":
                    self._key()
                case b"{" | b"[" as bracket:
                    self._open(position, is_object=bracket == b"{")
                case b"}" | b"]" as bracket:
                    self._close(position, is_object=bracket == b"}")
                case _:
                    continue  # the window ended between two of these, or the text did
            position += 1
        if self.stack:
            raise ScanError("is not valid JSON: it ends inside of an object or array")

    @property
    def _is_in_long_field(self) -> bool:
        return self.stack[0].keys is not None and self.stack[0].key in LONG_FIELDS

    def _pass_items(self, num_commas: int) -> None:
        """Go past the items of an array, whose strings, objects and arrays count by themselves."""
        if not num_commas:
            return
        self.stack[-1].index += num_commas
        if not self._is_in_long_field:
            self._count_items(num_commas)

    def _count_items(self, number: int) -> None:
        self.items += number
        if self.items > ITEMS_MAX:
            raise ScanError(f"holds more than {ITEMS_MAX} values", code="too_many_values")

    def _open(self, position: int, *, is_object: bool) -> None:
        self._count_items(1)
        if self.stack:
            self.stack[-1].flat = False
        self.stack.append(_Open(position, set() if is_object else None))
        if len(self.stack) > DEPTH_MAX:
            raise ScanError(f"nests deeper than {DEPTH_MAX} levels")

    def _close(self, position: int, *, is_object: bool) -> None:
        if not self.stack or (self.stack[-1].keys is not None) != is_object:
            raise ScanError(f"is not valid JSON: a bracket at byte {position} closes nothing")
        closed = self.stack.pop()
        if closed.flat and not is_object and position - closed.start > self.flat_bytes:
            path = tuple(
                entry.index if entry.keys is None else _key_text(entry.key) for entry in self.stack
            )
            self.found.append(FlatArray(path, closed.start + 1, position))

    def _key(self) -> None:
        keys = self.stack[-1].keys if self.stack else None
        if keys is None:
            raise ScanError("is not valid JSON: a colon outside of an object")
        raw = self.last_string
        self.stack[-1].key = raw
        # The same key may be written with and without escapes.
        key = raw if b"\\" not in raw else _key_text(raw).encode()
        if key in keys:
            name = _key_text(raw)
            raise ScanError("has the key {} twice in one object", name)
        keys.add(key)


def scan(body: bytes, flat_bytes: int) -> list[FlatArray]:
    """Check a text and find its long arrays of numbers. Takes up to 0.2 s.

    What is accepted here may still be no JSON; the parser says so. What a parser would refuse
    as well is refused in other words.

    Args:
        body: The whole text.
        flat_bytes: Arrays longer than this are reported.

    Raises:
        ScanError: It is too deep or too much, has a key twice, or its brackets do not match.
    """
    scanner = _Scanner(body, flat_bytes)
    scanner.run()
    return scanner.found


def _string_end(body: bytes, start: int) -> int:
    """Index of the quote that ends a string, or of the end of the text."""
    position = start
    while position < len(body):
        inside = _IN_STRING.match(body, position, position + SCAN_BYTES)
        assert inside is not None, "the pattern matches nothing, too"
        if body[inside.end() : inside.end() + 1] == b'"':
            return inside.end()
        # The window ended, perhaps between a backslash and what it escapes.
        if inside.end() == position:
            break
        position = inside.end()
    return len(body)


def _key_text(raw: bytes) -> str:
    try:
        return str(orjson.loads(b'"%b"' % raw))
    except orjson.JSONDecodeError as error:
        raise ScanError(f"is not valid JSON: {error.msg} in a key") from None
