"""Hypothesis strategies for the part of JSON Schema that our openapi.json uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

Schema = Mapping[str, Any]
Value = st.SearchStrategy[Any]

OPTIONAL_FIELDS_MAX = 3
"""Of one object: with more of some fifty, hardly a request would be one that makes sense."""

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers(-(2**31), 2**31) | TEXT
ANYTHING: Value = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False, width=32),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


class Strategies:
    """Values for the schemas of one OpenAPI document.

    Args:
        schemas: `components.schemas`.
        always: Values for fields of these names, whatever their schema says.
        often: Values that fields of these names have two times in three.
    """

    def __init__(
        self, schemas: Schema, always: Mapping[str, Value], often: Mapping[str, Value]
    ) -> None:
        self._schemas = schemas
        self._always = always
        self._often = often

    def value(self, schema: Schema) -> Value:
        """Values that a schema allows."""
        if "$ref" in schema:
            return st.deferred(lambda: self.value(self._schemas[schema["$ref"].split("/")[-1]]))
        if "anyOf" in schema:
            return st.one_of([self.value(branch) for branch in schema["anyOf"]])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        if "const" in schema:
            return st.just(schema["const"])
        match schema.get("type"):
            case "null":
                return st.none()
            case "boolean":
                return st.booleans()
            case "string":
                return TEXT.filter(lambda text: len(text) >= schema.get("minLength", 0))
            case "integer":
                return st.integers(*_bounds(schema, 40))
            case "number":
                low, high = _bounds(schema, 4)
                return st.floats(
                    low, high, exclude_min="exclusiveMinimum" in schema, allow_nan=False
                ) | st.integers(low + ("exclusiveMinimum" in schema), high)
            case "array":
                least = schema.get("minItems", 0)
                return st.lists(
                    self.value(schema.get("items", {})), min_size=least, max_size=least + 2
                )
            case "object":
                return self._object(schema)
            case _:
                return ANYTHING

    def _field(self, name: str, schema: Schema) -> Value:
        if name in self._always:
            return self._always[name]
        if name in self._often:
            return st.one_of(self._often[name], self._often[name], self.value(schema))
        return self.value(schema)

    def _object(self, schema: Schema) -> Value:
        properties: Schema = schema.get("properties", {})
        if not properties:
            extra = schema.get("additionalProperties", {})
            values = ANYTHING if extra in (True, {}) else self.value(extra)
            return st.dictionaries(TEXT, values, max_size=3)
        required = [name for name in properties if name in schema.get("required", ())]
        optional = [name for name in properties if name not in required]

        @st.composite
        def build(draw: st.DrawFn) -> dict[str, Any]:
            names = [*required]
            if optional:
                more = st.lists(
                    st.sampled_from(optional), max_size=OPTIONAL_FIELDS_MAX, unique=True
                )
                names += draw(more)
            return {name: draw(self._field(name, properties[name])) for name in names}

        return build()


def _bounds(schema: Schema, span: int) -> tuple[int, int]:
    """Bounds of numbers: those of the schema, and close to them where there is none."""
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum")
    if low is None:
        low = -span if high is None else high - span
    low = int(max(low, -(2**31)))
    return low, int(min(high, low + 20 * span)) if high is not None else low + span
