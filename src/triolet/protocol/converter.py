"""Parsed JSON to request dataclasses: the one converter, strict about types.

Stock cattrs turns "false" into True and "10" into 10. Here a value has its type or the
request is refused, with the path of the first field at fault and a short quotation:

* null means absent, for every field that has a default;
* an integer may be written 1.0, a number may be written 1;
* extra keys are no error: `fields.unknown_fields` reports them.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from cattrs import Converter

from triolet.errors import InvalidRequest
from triolet.protocol.fields import Range
from triolet.protocol.json_body import clip, json_type

T = TypeVar("T")
Shape: TypeAlias = Any
"""A type expression, for which `typing` has no type."""
Structure = Callable[[object, object], object]

_SCALARS: dict[type, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "a boolean",
    list: "an array",
    dict: "an object",
}
_DOUBLE_EXACT_MAX = 2**53


class _BadField(Exception):
    """A value of the wrong type or out of range; containers add their part of the path."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.path: list[str] = []


def structure(value: Mapping[str, object], cls: type[T]) -> T:
    """Build a request from a parsed body.

    Args:
        value: The JSON object.
        cls: A dataclass of this package.

    Raises:
        InvalidRequest: `param` is the path of the first field at fault, as `messages[0].role`.
    """
    try:
        return _CONVERTER.structure(value, cls)
    except _BadField as error:
        path = "".join(reversed(error.path)).removeprefix(".")
        raise InvalidRequest(f"{path}: {error.message}", param=path, code="invalid_value") from None


@contextmanager
def _under(part: str) -> Generator[None]:
    try:
        yield
    except _BadField as error:
        error.path.append(part)
        raise


def _scalar(cls: type) -> Structure:
    def hook(value: object, _: object) -> object:
        if cls is float and type(value) is int:
            return float(value)
        if (
            cls is int
            and type(value) is float
            and value.is_integer()
            and abs(value) <= _DOUBLE_EXACT_MAX
        ):
            return int(value)
        if type(value) is not cls:
            got = json_type(value)
            shown = "" if value is None or isinstance(value, (list, dict)) else f" ({clip(value)})"
            raise _BadField(f"expected {_SCALARS[cls]}, got {got}{shown}")
        return value

    return hook


def _literal(cls: Shape) -> Structure:
    allowed = get_args(cls)

    def hook(value: object, _: object) -> object:
        if not any(type(value) is type(option) and value == option for option in allowed):
            options = ", ".join(repr(option) for option in allowed)
            raise _BadField(f"expected one of {options}, got {clip(value)}")
        return value

    return hook


def _ranged(cls: Shape) -> Structure:
    base, *metadata = get_args(cls)
    bounds = next(item for item in metadata if isinstance(item, Range))
    inner = _CONVERTER.get_structure_hook(base)

    def hook(value: object, _: object) -> object:
        number = inner(value, base)
        assert isinstance(number, (int, float)), "Range is for numbers"
        if not bounds.low <= number <= bounds.high:
            raise _BadField(f"must be {bounds.describe()}, got {clip(value)}")
        return number

    return hook


def _array(cls: Shape) -> Structure:
    (item_type, *_) = get_args(cls)
    inner = _CONVERTER.get_structure_hook(item_type)

    def hook(value: object, _: object) -> object:
        if not isinstance(value, list):
            raise _BadField(f"expected an array, got {json_type(value)}")
        items: list[Any] = []
        try:
            for item in value:
                items.append(inner(item, item_type))  # noqa: PERF401  the index names the field
        except _BadField as error:
            error.path.append(f"[{len(items)}]")
            raise
        return tuple(items)

    return hook


def _object_of(cls: Shape) -> Structure:
    (_, value_type) = get_args(cls)
    any_value = value_type in (Any, object)
    inner = None if any_value else _CONVERTER.get_structure_hook(value_type)

    def hook(value: object, _: object) -> object:
        if not isinstance(value, dict):
            raise _BadField(f"expected an object, got {json_type(value)}")
        if inner is None:
            return value
        out: dict[str, Any] = {}
        for key, item in value.items():
            with _under(f".{key[:64]}"):
                out[key] = inner(item, value_type)
        return out

    return hook


def _dataclass(cls: Shape) -> Structure:
    hints = get_type_hints(cls, include_extras=True)
    fields = [
        (
            field.name,
            hints[field.name],
            _required(field),
            _CONVERTER.get_structure_hook(hints[field.name]),
        )
        for field in dataclasses.fields(cls)
        if field.init
    ]

    def hook(value: object, _: object) -> object:
        if not isinstance(value, dict):
            raise _BadField(f"expected an object, got {json_type(value)}")
        arguments: dict[str, Any] = {}
        for name, hint, required, inner in fields:
            item = value.get(name)
            if item is None and not required:
                continue
            with _under(f".{name}"):
                if required and name not in value:
                    raise _BadField("this field is required")
                arguments[name] = inner(item, hint)
        return cls(**arguments)

    return hook


def _required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _json_kind(member: Shape) -> type:
    """The JSON type that a member of a union is written as."""
    cls = member
    origin: Shape = get_origin(member)
    if origin is Annotated:
        cls = get_args(member)[0]
        origin = get_origin(cls)
    if origin is tuple:
        return list
    if origin in (dict, Mapping) or dataclasses.is_dataclass(cls):
        return dict
    if origin is Literal:
        return type(get_args(cls)[0])
    return cast("type", origin or cls)


def _union(cls: Shape) -> Structure:
    """A union told apart by JSON types; arrays by the type of their first item."""
    nullable = type(None) in get_args(cls)
    members: dict[type, list[tuple[type, Structure, Shape]]] = {}
    for member in get_args(cls):
        if member is not type(None):
            item = _json_kind(get_args(member)[0]) if get_origin(member) is tuple else object
            entry = (item, _CONVERTER.get_structure_hook(member), member)
            members.setdefault(_json_kind(member), []).append(entry)
    wanted = " or ".join(_SCALARS[kind] for kind in members)

    def hook(value: object, _: object) -> object:
        if value is None and nullable:
            return None
        kind = type(value)
        if kind in (int, float) and kind not in members:
            kind = next((number for number in (int, float) if number in members), kind)
        if kind not in members:
            raise _BadField(f"expected {wanted}, got {json_type(value)}")
        candidates = members[kind]
        first = type(value[0]) if isinstance(value, list) and value else None
        chosen = next((entry for entry in candidates if entry[0] is first), candidates[0])
        return chosen[1](value, chosen[2])

    return hook


def _passed(value: object, _: object) -> object:
    return value


def _build() -> Converter:
    # The hooks report the first error with its path; cattrs' own collection of all errors
    # would repeat the input once per error.
    converter = Converter(detailed_validation=False)
    for scalar in (str, int, float, bool):
        converter.register_structure_hook(scalar, _scalar(scalar))
    factories: list[tuple[Callable[[Any], bool], Callable[[Any], Structure]]] = [
        (dataclasses.is_dataclass, _dataclass),
        (lambda cls: cls in (Any, object), lambda _: _passed),
        (lambda cls: get_origin(cls) is tuple, _array),
        (lambda cls: get_origin(cls) in (dict, Mapping), _object_of),
        (lambda cls: get_origin(cls) in (Union, types.UnionType), _union),
        (lambda cls: get_origin(cls) is Literal, _literal),
        (
            lambda cls: (
                get_origin(cls) is Annotated
                and any(isinstance(item, Range) for item in get_args(cls)[1:])
            ),
            _ranged,
        ),
    ]
    for predicate, factory in factories:
        converter.register_structure_hook_factory(predicate, factory)
    return converter


_CONVERTER = _build()
