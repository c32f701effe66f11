"""Beam search in numbers small enough to follow; whole searches: test_scheduler_properties."""

from __future__ import annotations

import math

import pytest

from triolet.output import LOGPROB_FLOOR, TokenLogprobs
from triolet.request import FinishReason
from triolet.sampling_params import SamplingParams
from triolet.scheduler.beam_search import Beam, BeamSearch, Child, runner_sampling
from triolet.scheduler.finish import FinishRule

EOS = 0


def make_search(width: int, **settings: float) -> BeamSearch:
    sampling = SamplingParams(
        beam_width=width,
        n=1,
        max_tokens=int(settings.get("max_tokens", 9)),
        min_tokens=int(settings.get("min_tokens", 0)),
        length_penalty=settings.get("length_penalty", 1.0),
        logprobs=1,
    )
    return BeamSearch(sampling, FinishRule.of(sampling, (EOS,), 3, 100), 3)


def report(**tops: float) -> TokenLogprobs:
    """`report(t5=-1.0, t0=-2.0)`: token 5 is the most likely."""
    top = tuple((int(name[1:]), logprob) for name, logprob in tops.items())
    return TokenLogprobs(top[0][0], top[0][1], 1, top)


def summary(children: list[Child]) -> list[tuple[int, int, float]]:
    return [(child.parent, child.token, round(child.beam.logprob, 6)) for child in children]


def test_the_best_continuations_of_all_beams_go_on() -> None:
    search = make_search(2)
    first = search.advance([(Beam(), report(t5=-1.0, t6=-2.0, t7=-3.0))])
    assert summary(first) == [(0, 5, -1.0), (0, 6, -2.0)]
    second = search.advance(
        [
            (first[0].beam, report(t5=-4.0, t6=-5.0)),
            (first[1].beam, report(t8=-0.5, t9=-1.0)),
        ]
    )
    assert summary(second) == [(1, 8, -2.5), (1, 9, -3.0)]
    assert [entry.token_id for entry in second[1].beam.entries] == [6, 9]
    assert second[1].beam.entries[1] == TokenLogprobs(9, -1.0, 2, ((8, -0.5),))


def test_an_end_among_the_best_is_a_hypothesis_and_one_below_is_not() -> None:
    search = make_search(2)
    assert summary(search.advance([(Beam(), report(t5=-1.0, t0=-1.5, t6=-2.0, t7=-9.0))])) == [
        (0, 5, -1.0),
        (0, 6, -2.0),
    ]
    assert [h.token_ids for h in search.hypotheses] == [(EOS,)]
    assert search.hypotheses[0].finish.reason is FinishReason.STOP
    search = make_search(2)
    search.advance([(Beam(), report(t5=-1.0, t6=-1.5, t0=-2.0, t7=-9.0))])
    assert not search.hypotheses


def test_the_search_ends_when_no_beam_can_beat_the_worst_hypothesis() -> None:
    search = make_search(1)
    assert search.advance([(Beam(), report(t0=-0.1, t5=-3.0))]) == []
    assert search.hypotheses[0].score == pytest.approx(-0.1)


def test_the_length_penalty_divides_by_length() -> None:
    for penalty in (0.0, 1.0, 2.0):
        search = make_search(1, max_tokens=2, length_penalty=penalty)
        (child,) = search.advance([(Beam(), report(t5=-1.0, t6=-2.0))])
        assert search.advance([(child.beam, report(t7=-2.0, t8=-4.0))]) == []
        (hypothesis,) = search.hypotheses
        assert hypothesis.score == pytest.approx(-3.0 / math.pow(2, penalty))
        assert hypothesis.finish.reason is FinishReason.LENGTH


def test_min_tokens_keeps_ends_out() -> None:
    search = make_search(1, min_tokens=1)
    (child,) = search.advance([(Beam(), report(t0=-0.1, t5=-3.0))])
    assert child.token == 5
    assert search.advance([(child.beam, report(t0=-0.1, t5=-3.0))]) == []
    assert search.hypotheses[0].token_ids == (5, EOS)


def test_impossible_tokens_are_no_continuation() -> None:
    search = make_search(3)
    children = search.advance([(Beam(), report(t5=-1.0, t6=LOGPROB_FLOOR, t7=LOGPROB_FLOOR))])
    assert summary(children) == [(0, 5, -1.0)]


def test_the_runner_is_asked_for_the_candidates_of_one_beam() -> None:
    sampling = SamplingParams(beam_width=3, n=2, seed=1, min_tokens=1)
    asked = runner_sampling(sampling, num_stops=2)
    assert (asked.logprobs, asked.n, asked.beam_width, asked.is_greedy) == (8, 1, None, True)
