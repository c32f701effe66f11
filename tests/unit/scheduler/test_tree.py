from __future__ import annotations

from triolet.output import TokenLogprobs
from triolet.scheduler.tree import PromptScores

SCORES = [TokenLogprobs(token, -1.0, 1) for token in range(5)]


def test_prompt_scores_are_complete_when_every_position_after_the_first_is_there() -> None:
    scores = PromptScores(5)
    scores.add(3, SCORES[3:])
    assert scores.complete() is None
    scores.add(1, SCORES[1:3])
    assert scores.complete() == (None, *SCORES[1:])


def test_chunks_computed_again_do_not_count_twice() -> None:
    scores = PromptScores(4)
    for _ in range(3):
        scores.add(1, SCORES[1:2])
    assert scores.complete() is None
    scores.add(1, SCORES[1:4])
    assert scores.complete() == (None, *SCORES[1:4])


def test_a_prompt_of_one_token_has_nothing_to_wait_for() -> None:
    assert PromptScores(1).complete() == (None,)
