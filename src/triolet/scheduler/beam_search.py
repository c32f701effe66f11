"""Beam search over the top log-probabilities of each step.

As in transformers' `generate` with `early_stopping=False`: each round the best 2 x width
continuations of all beams are looked at in order; one that ends within the best `width` is
a hypothesis, the first `width` that go on are the next beams. The search is done when there
are `width` hypotheses and no beam can become better than the worst of them. A hypothesis
scores cumulative log-probability / length ** length_penalty, the ending token counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from triolet.output import LOGPROB_FLOOR, TokenLogprobs
from triolet.sampling_params import SamplingParams
from triolet.scheduler.finish import Finish, FinishRule


def runner_sampling(sampling: SamplingParams, num_stops: int) -> SamplingParams:
    """What the runner must do for a beam: take the best token and report the next best.

    Args:
        sampling: As the caller gave it.
        num_stops: Token ids that may have to be skipped because of `min_tokens`.
    """
    assert sampling.beam_width is not None, "not a beam search"
    skipped = num_stops if sampling.min_tokens else 0
    return attrs.evolve(
        sampling,
        n=1,
        beam_width=None,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        logprobs=2 * sampling.beam_width + skipped,
    )


@attrs.frozen
class Beam:
    """The score of one sequence that is still going on.

    Attributes:
        logprob: Cumulative log-probability of its output.
        entries: Log-probabilities per output token.
    """

    logprob: float = 0.0
    entries: tuple[TokenLogprobs, ...] = ()


@attrs.frozen
class Hypothesis:
    """An output that ended.

    Attributes:
        score: Better is higher.
        entries: Its tokens with their log-probabilities.
        finish: How it ended.
    """

    score: float
    entries: tuple[TokenLogprobs, ...]
    finish: Finish

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Its tokens."""
        return tuple(entry.token_id for entry in self.entries)


@attrs.frozen
class Child:
    """A beam of the next round.

    Attributes:
        parent: Index of the beam it continues.
        token: The token added.
        beam: Its score.
    """

    parent: int
    token: int
    beam: Beam


class BeamSearch:
    """The state of one beam search, apart from its sequences.

    Args:
        sampling: Of the request.
        rule: When an output ends.
        num_prompt_tokens: Length of the prompt.
    """

    def __init__(self, sampling: SamplingParams, rule: FinishRule, num_prompt_tokens: int) -> None:
        assert sampling.beam_width is not None, "not a beam search"
        self._width = sampling.beam_width
        self._length_penalty = sampling.length_penalty
        self._num_logprobs = sampling.logprobs or 0
        self._rule = rule
        self._num_prompt_tokens = num_prompt_tokens
        self.hypotheses: list[Hypothesis] = []
        """At most `beam_width`, best first."""

    def advance(self, beams: Sequence[tuple[Beam, TokenLogprobs]]) -> list[Child]:
        """Choose the next beams; none of them means that the search is done.

        Args:
            beams: Every beam with what the runner reported at its end.
        """
        candidates = sorted(
            (
                (-(beam.logprob + logprob), parent, rank, token, logprob)
                for parent, (beam, reported) in enumerate(beams)
                for rank, (token, logprob) in enumerate(reported.top, start=1)
                if logprob > LOGPROB_FLOOR and not self._is_too_early(beam, token)
            )
        )
        children: list[Child] = []
        for position, (_, parent, rank, token, logprob) in enumerate(candidates[: 2 * self._width]):
            beam, reported = beams[parent]
            top = reported.top[: self._num_logprobs]
            entry = TokenLogprobs(token, logprob, rank, top)
            grown = Beam(beam.logprob + logprob, (*beam.entries, entry))
            length = len(grown.entries)
            finish = self._rule.check(token, length, self._num_prompt_tokens + length)
            if finish is None:
                children.append(Child(parent, token, grown))
                if len(children) == self._width:
                    break
            elif position < self._width:
                self._add(Hypothesis(self._score(grown), grown.entries, finish))
        return [] if children and self._is_done(children[0].beam) else children

    def _is_too_early(self, beam: Beam, token: int) -> bool:
        return len(beam.entries) < self._rule.min_tokens and self._rule.is_stop(token)

    def _score(self, beam: Beam) -> float:
        return beam.logprob / math.pow(len(beam.entries), self._length_penalty)

    def _add(self, hypothesis: Hypothesis) -> None:
        self.hypotheses.append(hypothesis)
        self.hypotheses.sort(key=lambda h: -h.score)
        del self.hypotheses[self._width :]

    def _is_done(self, best: Beam) -> bool:
        return len(self.hypotheses) == self._width and self.hypotheses[-1].score >= self._score(
            best
        )
