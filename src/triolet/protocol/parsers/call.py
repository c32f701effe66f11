"""What a model's text is made of, once it is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from triolet.protocol.parsers.scan import load_object


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """One whole call of a tool.

    Attributes:
        name: Of the function.
        arguments: JSON text of an object.
    """

    name: str
    arguments: str


Piece = Reasoning | Content | Call


def call_of(name: object, arguments: object) -> Call:
    """A call from parsed parts.

    Args:
        name: Must be a string that is not empty.
        arguments: An object, the JSON text of one, or None for no arguments.

    Raises:
        ValueError: They make no call.
    """
    if not isinstance(name, str) or not name:
        raise ValueError("a call needs a name")
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        arguments = load_object(arguments or "{}")
    if not isinstance(arguments, Mapping):
        raise ValueError("arguments are an object")
    fields = cast("Mapping[str, object]", arguments)
    return Call(name, json.dumps(dict(fields), ensure_ascii=False))


def call_of_object(fields: Mapping[str, object]) -> Call:
    """A call from its usual JSON form, {"name": ..., "arguments" or "parameters": {...}}.

    Raises:
        ValueError: It has another form.
    """
    arguments = fields.get("arguments", fields.get("parameters"))
    return call_of(fields.get("name"), arguments)
