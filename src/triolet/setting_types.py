"""Whether a setting has the type it is declared with; nothing is converted on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a finite number",
    str: "a string",
    NoneType: "none",
}


def wrong_setting(group: attrs.AttrsInstance) -> tuple[str, str, object] | None:
    """The first field of a settings class whose value is not of its type.

    Returns:
        Its name, what it should be, and what it is; None if all are right.
    """
    hints = get_type_hints(type(group))
    for field in attrs.fields(type(group)):
        value: object = getattr(group, field.name)
        if not fits(value, hints[field.name]):
            return field.name, describe(hints[field.name]), value
    return None


def fits(value: object, wanted: Any) -> bool:  # noqa: ANN401  a type
    """Whether a value is of a type: of those that settings are declared with."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if wanted is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and math.isfinite(value)  # type: ignore[arg-type] # a number by now
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is Literal:
        return value in arguments
    if origin in (Union, UnionType):
        return any(fits(value, option) for option in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(fits(item, arguments[0]) for item in value)
    if origin is not None:
        return (
            isinstance(value, Mapping)
            and all(fits(key, arguments[0]) for key in value)
            and all(fits(item, arguments[1]) for item in value.values())
        )
    return wanted in (Any, object) or isinstance(value, wanted)


def describe(wanted: Any) -> str:  # noqa: ANN401  a type
    """What a value of a type is, in words."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in arguments)
    if origin in (Union, UnionType):
        return " or ".join(describe(option) for option in arguments)
    if origin is tuple:
        return f"a tuple, each item {describe(arguments[0])}"
    if origin is not None:
        return f"a table of names, each {describe(arguments[1])}"
    return _WORDS.get(wanted, wanted.__name__ if isinstance(wanted, type) else str(wanted))
