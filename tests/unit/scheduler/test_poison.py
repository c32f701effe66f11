from __future__ import annotations

from triolet.request import RequestId, SequenceId
from triolet.scheduler.poison import Suspects

A, B, C = RequestId("a"), RequestId("b"), RequestId("c")


def rows(*requests: RequestId, end: int = 10) -> list[tuple[RequestId, SequenceId, int]]:
    return [(request, SequenceId(ord(request[0])), end) for request in requests]


def isolated(suspects: Suspects) -> bool:
    return suspects.are_isolated


def progress(suspects: Suspects, request: RequestId, confirmed: int = 10) -> None:
    suspects.progressed(request, SequenceId(ord(request[0])), confirmed)


def test_a_suspect_is_cleared_when_it_passes_the_point_of_the_death() -> None:
    suspects = Suspects()
    assert suspects.runner_died(rows(A, B)) is None
    assert A in suspects
    progress(suspects, A, 9)
    assert A in suspects
    progress(suspects, A, 10)
    assert A not in suspects
    assert len(suspects) == 1


def test_one_death_isolates_nobody_two_in_a_row_do() -> None:
    suspects = Suspects()
    suspects.runner_died(rows(A, B))
    assert not isolated(suspects)
    suspects.runner_died(rows(A, B))
    assert isolated(suspects)
    assert suspects.request_ids == (A, B)


def test_deaths_are_not_in_a_row_when_all_suspects_were_cleared_between() -> None:
    suspects = Suspects()
    for _ in range(5):
        assert suspects.runner_died(rows(A, B)) is None
        assert not isolated(suspects)
        progress(suspects, A)
        progress(suspects, B)


def test_only_what_kills_alone_is_poison() -> None:
    suspects = Suspects()
    suspects.runner_died(rows(A, B, C))
    suspects.runner_died(rows(A, B, C))
    progress(suspects, A)
    assert suspects.runner_died(rows(B)) == B
    assert suspects.request_ids == (C,)
    assert isolated(suspects)
    progress(suspects, C)
    assert not isolated(suspects)
    assert len(suspects) == 0


def test_a_single_request_is_not_convicted_by_its_first_two_deaths() -> None:
    suspects = Suspects()
    assert suspects.runner_died(rows(A)) is None
    assert suspects.runner_died(rows(A)) is None
    assert suspects.runner_died(rows(A)) == A


def test_a_death_with_nothing_in_flight_accuses_nobody() -> None:
    suspects = Suspects()
    suspects.runner_died(rows(A))
    assert suspects.runner_died([]) is None
    assert not isolated(suspects)


def test_a_suspect_that_ends_is_forgotten() -> None:
    suspects = Suspects()
    suspects.runner_died(rows(A, B))
    suspects.dismiss(A)
    suspects.sequence_ended(B, SequenceId(ord("b")))
    suspects.dismiss(C)
    assert len(suspects) == 0
    suspects.runner_died(rows(C))
    assert not isolated(suspects), "the row of deaths was broken"
