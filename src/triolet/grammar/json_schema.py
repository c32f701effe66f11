"""What is wrong with a JSON schema before any native code has seen it.

Size, depth, foreign references and references that go in circles are found here, in time linear
in the size of the text, so that nothing hostile reaches a compiler.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import cast
from urllib.parse import unquote

from triolet.errors import InvalidRequest

SCHEMA_CHARS_MAX = 256 * 1024
"""Compiling takes about 10 ms per 50 kB (llguidance 1.9)."""

SCHEMA_DEPTH_MAX = 64
"""llguidance parses recursively and gives up at 128; people stop far before."""

Pointer = tuple[str, ...]
"""Where something is in a schema: keys and indices from the top."""

_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
_STEP = {"{": 1, "[": 1, "}": -1, "]": -1}
_DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are documents, not schemas."""
_IN_PLACE = ("allOf", "anyOf", "oneOf")
"""Keywords whose schemas describe the same piece of the document as their parent."""


def check_json_schema(text: str, param: str) -> None:
    """Check the text of a schema.

    Args:
        text: JSON.
        param: Name of the request field, for the message.

    Raises:
        InvalidRequest: It is too large or too deep, it is no JSON, or its references lead
            nowhere, out of it, or in a circle.
    """
    try:
        _check(text)
    except ValueError as error:
        raise InvalidRequest(f"{param} {error}", param=param) from error


def _check(text: str) -> None:
    if len(text) > SCHEMA_CHARS_MAX:
        raise ValueError(f"has {len(text)} characters; at most {SCHEMA_CHARS_MAX} are allowed")
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        depth += _STEP.get(match[0], 0)
        if depth > SCHEMA_DEPTH_MAX:
            raise ValueError(f"is nested more than {SCHEMA_DEPTH_MAX} deep")
    try:
        schema: object = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise ValueError(f"is not valid JSON: {error}") from error
    if schema is False:
        raise ValueError("is false, which no document satisfies")
    if not isinstance(schema, dict) and schema is not True:
        raise ValueError(f"must be a JSON object, got {type(schema).__name__}")

    in_place: dict[Pointer, list[Pointer]] = {}
    for pointer, node in _schemas(schema):
        edges = in_place.setdefault(pointer, [])
        if isinstance(reference := node.get("$ref"), str):
            edges.append(_target(schema, reference))
        for keyword in _IN_PLACE:
            if isinstance(parts := node.get(keyword), list):
                edges += [(*pointer, keyword, str(i)) for i in range(len(parts))]
    _check_circles(in_place)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _schemas(top: object) -> Iterator[tuple[Pointer, Mapping[str, object]]]:
    """Every object of a schema that can be a schema itself, and where it is."""
    stack: list[tuple[Pointer, object]] = [((), top)]
    while stack:
        pointer, node = stack.pop()
        if isinstance(node, dict):
            members = cast("dict[str, object]", node)
            yield pointer, members
            stack += [((*pointer, k), v) for k, v in members.items() if k not in _DATA]
        elif isinstance(node, list):
            items = cast("list[object]", node)
            stack += [((*pointer, str(i)), item) for i, item in enumerate(items)]


def _target(top: object, reference: str) -> Pointer:
    """Where a local reference leads (RFC 6901).

    Raises:
        ValueError: Out of the schema, or nowhere.
    """
    if reference != "#" and not reference.startswith("#/"):
        raise ValueError(
            f"has the reference {reference!r}; only references into the schema itself "
            "('#/$defs/...') are followed"
        )
    pointer = tuple(
        unquote(key).replace("~1", "/").replace("~0", "~") for key in reference.split("/")[1:]
    )
    node = top
    for key in pointer:
        if isinstance(node, dict) and key in node:
            node = cast("dict[str, object]", node)[key]
        elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = cast("list[object]", node)[int(key)]
        else:
            raise ValueError(f"has the reference {reference!r}, which leads nowhere")
    return pointer


def _check_circles(edges: Mapping[Pointer, list[Pointer]]) -> None:
    """Refuse a schema that contains itself at the same place of the document.

    A recursive schema (a tree whose children are trees) is fine: its circle leads through
    `properties` or `items`, which are no edges here.

    Raises:
        ValueError: There is such a circle.
    """
    done: set[Pointer] = set()
    for start in edges:
        path: dict[Pointer, None] = {}
        stack = [(start, False)]
        while stack:
            pointer, left = stack.pop()
            if left:
                path.pop(pointer)
                done.add(pointer)
            elif pointer in path:
                raise ValueError(
                    f"refers to itself at '#/{'/'.join(pointer)}' without describing anything"
                )
            elif pointer not in done:
                path[pointer] = None
                stack.append((pointer, True))
                stack += [(target, False) for target in edges.get(pointer, [])]
