"""JSON bodies: what every parser reads alike is taken, everything else is a named fault."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from triolet.errors import InvalidRequest
from triolet.protocol.json_body import CLIP_CHARS, PIECE_BYTES, clip, parse_object
from triolet.protocol.json_scan import DEPTH_MAX, ITEMS_MAX

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(st.characters(codec="utf-8")), JSON_VALUES, max_size=4))
def test_what_json_can_write_is_read_back(value: dict[str, object]) -> None:
    assert parse_object(json.dumps(value).encode()) == value
    assert parse_object(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"{", "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b'{"a": 1} {"b": 2}', "not valid JSON"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"a": Infinity}', "not valid JSON"),
        (b'{"a": -Infinity}', "not valid JSON"),
        (b'{"a": 1e400}', "not valid JSON"),
        (b'{"a": 01}', "not valid JSON"),
        (b'\xef\xbb\xbf{"a": 1}', "byte order mark"),
        (b'{"a": "\xff"}', "not valid JSON"),
        ('{"a": 1}'.encode("utf-16"), "not valid JSON"),
        (rb'{"a": "\ud800"}', "not valid JSON"),
        (rb'{"\udc00": 1}', "not valid JSON"),
        (b"[1, 2]", "must be a JSON object, got an array"),
        (b"null", "must be a JSON object, got null"),
        (b'"text"', "must be a JSON object, got a string"),
        (b"12", "must be a JSON object, got an integer"),
        (b'{"a": ' + b"9" * 100_000 + b"}", "not valid JSON"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"o": {"b": 1, "c": 2, "b": 1}}', "twice"),
        (rb'{"a": 1, "\u0061": 2}', "twice"),
        (rb'{"a\"": {"a": [{}, {"x": 1}]}, "a\"": 2}', "twice"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "nests deeper"),
        (b'{"a": ' * 70 + b"1" + b"}" * 70, "nests deeper"),
        (b"[" * 1_000_000, "nests deeper"),
        (b'{"a": [1}', "closes nothing"),
        (b'{"a": [1:2]}', "colon outside"),
        (b'{"a": [1', "ends inside"),
        (b'{"a": "x', "ends inside"),
        (b'{"a": "x\\', "ends inside"),
        (b'{"tokens": [' + b"1," * PIECE_BYTES + b"]}", "trailing comma"),
        (b'{"tokens": [' + b"1," * (PIECE_BYTES // 2) + b"2, ]}", "comma too many"),
        (b'{"tokens": [' + b" " * PIECE_BYTES + b",1]}", "comma too many"),
        (b'{"tokens": [' + b"1," * PIECE_BYTES + b"x]}", "not valid JSON"),
        (b'{"tokens": [' + b"1," * PIECE_BYTES + b",1]}", "not valid JSON"),
    ],
)
def test_anything_else_is_refused_with_its_cause(body: bytes, part: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_object(body)
    assert part in caught.value.message
    assert caught.value.code == "invalid_json"
    assert len(caught.value.message) < 500


def test_keys_are_compared_within_their_object_only() -> None:
    body = rb'{"a": {"a": [{"a": 1}, {"a": 2}]}, "b": "\"a\": {", "c": {"a": "a"}, "\\": 1}'
    assert parse_object(body) == json.loads(body)


def test_depth_counts_brackets_outside_of_strings_only() -> None:
    deepest = b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1)
    parse_object(b'{"a": ' + deepest + b"}")
    parse_object(b'{"a": "' + b"[" * 1000 + b'\\"[[[["}')
    with pytest.raises(InvalidRequest, match="nests deeper"):
        parse_object(b'{"a": [' + deepest + b"]}")


@given(st.text())
def test_a_quotation_is_short_and_can_be_encoded(text: str) -> None:
    assert len(clip(text)) < CLIP_CHARS * 12
    clip(text).encode()
    clip([text]).encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        {"tokens": list(range(200_000)), "prompt": [[1.5] * 100_000, [True, None] * 60_000]},
        {"a\\": {"b": ["", list(range(99_999))]}, "prompt": [[[]], [2] * 90_000], "d": []},
        {"a": [], "b": " " * PIECE_BYTES},
        {"prompt": [[7] * 50_000, [8] * 90_000, "x", [9] * 90_000], "n": 1},
    ],
)
def test_long_arrays_of_numbers_are_parsed_in_pieces(value: dict[str, object]) -> None:
    assert parse_object(b'{"tokens": [' + b" " * 2 * PIECE_BYTES + b"]}") == {"tokens": []}
    for separators in ((",", ":"), (" , ", " : ")):
        assert parse_object(json.dumps(value, separators=separators).encode()) == value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("item", "own"), [(b"1", 1), (b"null", 1), (b'""', 2), (b"{}", 2), (b"[]", 2), (b'{"":""}', 4)]
)
def test_a_body_may_hold_so_many_values(item: bytes, own: int) -> None:
    # Keys count, and an item of an array as well as what it is.
    most = (ITEMS_MAX - 2) // own
    parse_object(b'{"a": [' + b",".join([item] * most) + b"]}")
    with pytest.raises(InvalidRequest, match="more than 131072 values") as caught:
        parse_object(b'{"a": [' + b",".join([item] * (most + 1)) + b"]}")
    assert caught.value.code == "too_many_values"


@pytest.mark.slow
@pytest.mark.parametrize("piece", [rb"\n", rb"\\", rb"\"", rb"\u0041"])
def test_a_string_of_escapes_ends_where_it_ends(piece: bytes) -> None:
    text = piece * 100_000
    body = b'{"a": "' + text + b'", "b": "' + text[: len(piece) * 3] + b'"}'
    assert parse_object(body) == json.loads(body)
