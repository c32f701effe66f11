"""Deadlines come out in the order of time, each once."""

import math

from hypothesis import given, strategies as st

from triolet.request import RequestId, Timeouts
from triolet.tracker.deadlines import Deadlines

seconds = st.none() | st.floats(0, 100, allow_nan=False)


@given(st.lists(st.tuples(st.floats(0, 100), seconds, seconds, seconds), max_size=20))
def test_every_deadline_passes_once_and_in_order(
    requests: list[tuple[float, float | None, float | None, float | None]],
) -> None:
    deadlines = Deadlines()
    expected = []
    for number, (arrival, total, queue, first) in enumerate(requests):
        name = RequestId(str(number))
        deadlines.add(name, arrival, Timeouts(total=total, queue=queue, first_token=first))
        for kind, limit in (("total", total), ("queue", queue), ("first_token", first)):
            if limit is not None:
                expected.append((arrival + limit, name, kind))
    passed = []
    while (now := deadlines.next_time) < math.inf:
        passed += [(now, name, kind) for name, kind in deadlines.pop_passed(now)]
    assert sorted(passed) == sorted(expected)
    assert [time for time, *_ in passed] == sorted(time for time, *_ in expected)


def test_nothing_passes_before_its_time() -> None:
    deadlines = Deadlines()
    deadlines.add(RequestId("a"), 10.0, Timeouts(total=5.0))
    assert deadlines.pop_passed(14.999) == []
    assert deadlines.pop_passed(15.0) == [(RequestId("a"), "total")]
