"""Strict reading of requests: the first fault, its path, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Literal

import pytest
from hypothesis import given, strategies as st

from triolet.errors import InvalidRequest
from triolet.protocol.converter import structure
from triolet.protocol.fields import Range


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    name: str
    size: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    flag: bool = False
    count: int | None = None
    ratio: float = 1.0
    kind: Literal["a", "b"] = "a"
    level: Annotated[int, Range(0, 9)] = 0
    inner: Inner | None = None
    items: tuple[Inner, ...] = ()
    either: str | tuple[str, ...] | tuple[int, ...] | tuple[tuple[int, ...], ...] = ""
    scores: Mapping[str, float] | None = None
    anything: Mapping[str, object] | None = None


@pytest.mark.parametrize(
    ("body", "param", "part"),
    [
        ({"flag": "false"}, "flag", "expected a boolean, got a string ('false')"),
        ({"flag": 1}, "flag", "expected a boolean, got an integer"),
        ({"count": "10"}, "count", "expected an integer, got a string"),
        ({"count": True}, "count", "expected an integer, got a boolean"),
        ({"count": 1.5}, "count", "expected an integer, got a number"),
        ({"count": 1e300}, "count", "expected an integer"),
        ({"ratio": True}, "ratio", "expected a number, got a boolean"),
        ({"ratio": "hot"}, "ratio", "expected a number, got a string"),
        ({"kind": "c"}, "kind", "expected one of 'a', 'b', got 'c'"),
        ({"kind": 1}, "kind", "expected one of"),
        ({"level": 10}, "level", "must be between 0 and 9, got 10"),
        ({"inner": []}, "inner", "expected an object, got an array"),
        ({"inner": {}}, "inner.name", "this field is required"),
        ({"inner": {"name": None}}, "inner.name", "expected a string, got null"),
        ({"items": {}}, "items", "expected an array, got an object"),
        ({"items": "abc"}, "items", "expected an array, got a string"),
        ({"items": [{"name": "x"}, {"name": 5}]}, "items[1].name", "expected a string"),
        ({"either": 5}, "either", "expected a string or an array, got an integer"),
        ({"either": ["a", 5]}, "either[1]", "expected a string"),
        ({"either": [1, "a"]}, "either[1]", "expected an integer"),
        ({"either": [[1], [2.5]]}, "either[1][0]", "expected an integer"),
        ({"scores": {"5": "x"}}, "scores.5", "expected a number"),
        ({"anything": 5}, "anything", "expected an object"),
    ],
)
def test_fault_names_path_cause_and_what_was_sent(
    body: dict[str, object], param: str, part: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        structure(body, Outer)
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}: ")
    assert part in caught.value.message


def test_null_is_absent_where_there_is_a_default() -> None:
    names = [field.name for field in dataclasses.fields(Outer)]
    assert structure(dict.fromkeys(names), Outer) == Outer()


def test_numbers_may_be_written_either_way() -> None:
    got = structure({"count": 3.0, "ratio": 2}, Outer)
    assert (got.count, got.ratio) == (3, 2.0)
    assert type(got.count) is int
    assert type(got.ratio) is float


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", "a"),
        ([], ()),
        (["a"], ("a",)),
        ([1, 2], (1, 2)),
        ([[1], []], ((1,), ())),
    ],
)
def test_union_is_told_apart_by_json_types(value: object, expected: object) -> None:
    assert structure({"either": value}, Outer).either == expected


def test_only_the_first_of_many_faults_is_reported() -> None:
    with pytest.raises(InvalidRequest) as caught:
        structure({"items": [{"name": i} for i in range(4000)]}, Outer)
    assert caught.value.param == "items[0].name"
    assert len(caught.value.message) < 200


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from([field.name for field in dataclasses.fields(Outer)]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
            max_leaves=6,
        ),
    )
)
def test_any_json_is_read_or_refused_with_a_bounded_message(body: dict[str, object]) -> None:
    refused: InvalidRequest | None = None
    try:
        structure(body, Outer)
    except InvalidRequest as error:
        refused = error
    if refused is not None:
        assert refused.param
        assert len(refused.message) < 2000
