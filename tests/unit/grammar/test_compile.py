"""What is refused before and by the compiler, and in which words."""

import json

import pytest

from triolet.errors import InvalidRequest
from triolet.grammar.compile import CHOICES_MAX, NESTING_MAX, check_grammar, check_limits
from triolet.grammar.json_schema import SCHEMA_CHARS_MAX, SCHEMA_DEPTH_MAX
from triolet.sampling_params import StructuredOutputs

TREE = {
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            },
        }
    },
    "$ref": "#/$defs/tree",
}


def schema(
    value: object, *, strict: bool = True, any_whitespace: bool = False
) -> StructuredOutputs:
    return StructuredOutputs(
        json_schema=json.dumps(value), strict=strict, any_whitespace=any_whitespace
    )


@pytest.mark.parametrize(
    "structured",
    [
        schema({"type": "object", "properties": {"a": {"type": "integer"}}}),
        schema(TREE),
        schema(True),
        schema({"const": {"$ref": "https://example.org/is-data-here"}}),
        schema({"properties": {"$ref": {"type": "string"}}}),
        schema({"anyOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/x"}], "$defs": {"x": {}}}),
        schema({"$ref": "#/$defs/a~1b%20~0", "$defs": {"a/b ~": {"type": "null"}}}),
        schema({"type": "array"}, any_whitespace=True),
        StructuredOutputs(json_object=True),
        StructuredOutputs(regex=r"\d{3}-[a-z]+"),
        StructuredOutputs(choice=("a", 'with "quotes"', "back\\slash", "new\nline", "日本 😀")),
        StructuredOutputs(grammar='start: "a" | "b" start'),
    ],
)
def test_what_can_be_followed_is_accepted(structured: StructuredOutputs) -> None:
    assert check_grammar(structured) == ()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "format": "password"}, "password"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "greater than maximum"),
        (False, "no document satisfies"),
        ([1], "must be a JSON object, got list"),
        ({"$ref": "https://example.org/x"}, "only references into the schema itself"),
        ({"$ref": "#/$defs/no"}, "leads nowhere"),
        ({"$ref": "#"}, "refers to itself"),
        ({"allOf": [{"$ref": "#"}]}, "refers to itself"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "refers to itself"),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            },
            "refers to itself",
        ),
    ],
)
def test_a_wrong_schema_is_refused_by_name(value: object, words: str) -> None:
    with pytest.raises(InvalidRequest, match=r"structured_outputs\.json") as caught:
        check_grammar(schema(value))
    assert words in caught.value.message
    assert caught.value.param == "structured_outputs.json"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ('{"const": NaN}', "NaN"),
        ('{"items": ' * 70 + "{}" + "}" * 70, f"more than {SCHEMA_DEPTH_MAX} deep"),
        ("[" * 100_000, f"more than {SCHEMA_DEPTH_MAX} deep"),
        ('{"const": "' + "x" * SCHEMA_CHARS_MAX + '"}', f"at most {SCHEMA_CHARS_MAX}"),
    ],
)
def test_text_that_is_no_schema_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        check_limits(StructuredOutputs(json_schema=text))


def test_brackets_inside_strings_are_not_depth() -> None:
    check_limits(StructuredOutputs(json_schema=json.dumps({"const": "[{" * 100 + '\\"['})))


def test_an_unknown_keyword_is_a_warning_when_not_strict() -> None:
    (warning,) = check_grammar(schema({"type": "array", "uniqueItems": True}, strict=False))
    assert "uniqueItems" in warning


def test_a_schema_cannot_lift_the_bounds_on_white_space() -> None:
    """llguidance reads options from the schema itself; ours win."""
    hostile = {"type": "array", "x-guidance": {"whitespace_flexible": True, "lenient": True}}
    with pytest.raises(InvalidRequest, match="uniqueItems"):
        check_grammar(schema({**hostile, "uniqueItems": True}))


@pytest.mark.parametrize(
    ("structured", "param"),
    [
        (StructuredOutputs(regex="("), "structured_outputs.regex"),
        (StructuredOutputs(regex="(" * (NESTING_MAX + 1)), "structured_outputs.regex"),
        (StructuredOutputs(regex="a" * 100_000), "structured_outputs.regex"),
        (StructuredOutputs(grammar="start: missing"), "structured_outputs.grammar"),
        (StructuredOutputs(grammar="[" * 1000), "structured_outputs.grammar"),
        (StructuredOutputs(grammar="x" * 100_000), "structured_outputs.grammar"),
        (StructuredOutputs(choice=("a",) * (CHOICES_MAX + 1)), "structured_outputs.choice"),
        (StructuredOutputs(choice=("a" * 70_000,)), "structured_outputs.choice"),
    ],
)
def test_errors_name_the_field_and_stay_short(structured: StructuredOutputs, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_grammar(structured)
    assert caught.value.param == param
    assert len(caught.value.message) < 600
