"""FunctionGemma's calls as Lark rules: `call:f{a:<escape>x<escape>,n:1}`, keys in order.

Source: the chat template of google/functiongemma-270m-it, which writes keys sorted. Types,
enumerations and required properties of the top level are enforced, what is nested only by its
type: the notation is no JSON, so llguidance's JSON schemas do not apply.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from triolet.protocol.tools import FunctionSpec, parameters_of

Marker = Callable[[str], str]

BEGIN = "<start_function_call>"
END = "<end_function_call>"
_ESCAPE = "<escape>"

ITEMS_MAX = 64
"""Members of one array or object: a model that does not stop is stopped here."""

_SCALARS: Mapping[str, str] = {
    "string": "gemma_string",
    "integer": "GEMMA_INTEGER",
    "number": "GEMMA_NUMBER",
    "boolean": '("true" | "false")',
    "null": '"null"',
    "array": "gemma_array",
    "object": "gemma_object",
}


def gemma_rules(tools: Sequence[FunctionSpec], marker: Marker) -> list[str]:
    """Rules `tool_0`, `tool_1`, ... for calls of tools, and what they need.

    Args:
        tools: Those that may be called.
        marker: How to write a marker.
    """
    rules: list[str] = []
    for i, tool in enumerate(tools):
        head = json.dumps(f"call:{tool.name}{{")
        rules.append(f'tool_{i}: {marker(BEGIN)} {head} args_{i} "}}" {marker(END)}')
        rules += _arguments(i, parameters_of(tool), marker)
    return [*rules, *_values(marker)]


def _arguments(number: int, schema: Mapping[str, object], marker: Marker) -> list[str]:
    """Rules of a tool's members in order: `f` before the first that is written, `m` after it."""
    raw = schema.get("properties")
    properties = cast("Mapping[str, object]", raw) if isinstance(raw, Mapping) else {}
    names = schema.get("required")
    required = set(cast("list[object]", names)) if isinstance(names, list) else set[object]()
    if not properties:
        return [f"args_{number}: gemma_members?" if _is_open(schema) else f'args_{number}: ""']
    ordered = sorted(properties)
    rules = [f"args_{number}: f_{number}_0"]
    for j, name in enumerate(ordered):
        member = f"{json.dumps(name + ':')} {_value(properties[name], marker)}"
        skip_f = "" if name in required else f" | f_{number}_{j + 1}"
        skip_m = "" if name in required else f" | m_{number}_{j + 1}"
        rules.append(f"f_{number}_{j}: {member} m_{number}_{j + 1}{skip_f}")
        rules.append(f'm_{number}_{j}: "," {member} m_{number}_{j + 1}{skip_m}')
    last = len(ordered)
    return [*rules, f'f_{number}_{last}: ""', f'm_{number}_{last}: ""']


def _is_open(schema: Mapping[str, object]) -> bool:
    return schema.get("additionalProperties", True) is not False


def _value(schema: object, marker: Marker) -> str:
    """The term of a value of a schema."""
    fields = cast("Mapping[str, object]", schema) if isinstance(schema, Mapping) else {}
    choices = [fields["const"]] if "const" in fields else fields.get("enum")
    if isinstance(choices, list) and choices:
        return f"({' | '.join(_literal(choice, marker) for choice in choices)})"
    kind = fields.get("type")
    kinds = cast("list[object]", kind) if isinstance(kind, list) else [kind]
    terms = [_SCALARS[name] for name in kinds if isinstance(name, str) and name in _SCALARS]
    return f"({' | '.join(terms)})" if terms else "gemma_value"


def _literal(value: object, marker: Marker) -> str:
    if isinstance(value, str):
        return f"{marker(_ESCAPE)} {json.dumps(value, ensure_ascii=False)} {marker(_ESCAPE)}"
    return json.dumps(json.dumps(value))


def _values(marker: Marker) -> list[str]:
    """Rules of values of any type."""
    escape = marker(_ESCAPE)
    if escape.startswith('"'):  # a lazy lexeme ends with the first marker
        string = [f"gemma_string: {escape} gemma_rest", f"gemma_rest[lazy]: /(.|\\n)*/ {escape}"]
    else:  # a token, which no text contains
        string = [f"gemma_string: {escape} GEMMA_TEXT? {escape}", "GEMMA_TEXT: /(.|\\n)+/"]
    more = f"{{0,{ITEMS_MAX - 1}}}"
    return [
        *string,
        r"GEMMA_INTEGER: /-?(0|[1-9][0-9]{0,17})/",
        r"GEMMA_NUMBER: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,3})?/",
        f"gemma_value: {' | '.join(_SCALARS.values())}",
        f'gemma_array: "[" (gemma_value ("," gemma_value){more})? "]"',
        'gemma_object: "{" gemma_members? "}"',
        f'gemma_members: gemma_member ("," gemma_member){more}',
        "gemma_member: GEMMA_KEY gemma_value",
        r"GEMMA_KEY: /[A-Za-z_][A-Za-z0-9_\-]{0,63}:/",
    ]
