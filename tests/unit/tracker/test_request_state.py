"""The table of request states is the only source of transitions."""

import itertools

import pytest

from triolet.errors import InternalError
from triolet.tracker.request_state import TRANSITIONS, RequestState, check_transition


@pytest.mark.parametrize(("before", "after"), [*itertools.product(RequestState, RequestState)])
def test_only_transitions_of_the_table_are_possible(
    before: RequestState, after: RequestState
) -> None:
    if after in TRANSITIONS[before]:
        assert check_transition(before, after) is after
    else:
        with pytest.raises(InternalError):
            check_transition(before, after)


def test_exactly_the_three_ends_are_final() -> None:
    assert {s for s in RequestState if s.is_final} == {
        RequestState.FINISHED,
        RequestState.FAILED,
        RequestState.CANCELLED,
    }


@pytest.mark.parametrize("state", RequestState)
def test_every_state_can_end(state: RequestState) -> None:
    reachable, frontier = {state}, [state]
    while frontier:
        for after in TRANSITIONS[frontier.pop()] - reachable:
            reachable.add(after)
            frontier.append(after)
    assert any(s.is_final for s in reachable)


def test_a_live_request_can_fail_and_be_cancelled_in_any_state() -> None:
    for state in RequestState:
        if not state.is_final:
            assert {RequestState.FAILED, RequestState.CANCELLED} <= TRANSITIONS[state]
