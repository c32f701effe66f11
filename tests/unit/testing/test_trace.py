"""Equal runs have equal digests; unequal ones part at a place that can be shown."""

from __future__ import annotations

from triolet.testing.trace import Trace, diff


def traced(*details: str) -> Trace:
    trace = Trace()
    for number, detail in enumerate(details):
        trace.add(number * 0.1, "state", detail)
    return trace


def test_equal_traces_have_equal_digests() -> None:
    assert traced("a", "b").digest() == traced("a", "b").digest()
    assert traced("a", "b").digest() != traced("b", "a").digest()
    assert traced("a").digest() != traced("a", "b").digest()


def test_times_that_differ_by_rounding_are_equal() -> None:
    one, other = Trace(), Trace()
    one.add(0.1 + 0.2, "end")
    other.add(0.3, "end")
    assert one.digest() == other.digest()


def test_a_diff_shows_the_first_difference() -> None:
    assert diff(traced("a", "b").events, traced("a", "b").events) is None
    parted = diff(traced("a", "b", "c").events, traced("a", "x", "c").events)
    assert parted is not None
    assert parted.position == 1
    assert "b" in str(parted)
    assert "x" in str(parted)
    shorter = diff(traced("a").events, traced("a", "b").events)
    assert shorter is not None
    assert shorter.one is None
