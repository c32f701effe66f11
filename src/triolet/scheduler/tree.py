"""One request as a tree of sequences: the unit of admission, of ending, and of accounting.

With n > 1 one sequence computes the prompt; when it has its first token its siblings fork
from it, as ordinary sequences that share its full blocks. A beam search starts the same way
and goes on in rounds (`beam_search.py`).
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceABC

import attrs

from triolet.output import TokenLogprobs
from triolet.request import GenerationRequest, RequestId
from triolet.sampling_params import SamplingParams
from triolet.scheduler.beam_search import Beam, BeamSearch, runner_sampling
from triolet.scheduler.finish import FinishRule
from triolet.scheduler.policy import RequestKey
from triolet.scheduler.sequence import Sequence, SequenceStatus


class PromptScores:
    """Log-probabilities of a prompt, collected over the chunks of its prefill.

    Args:
        num_prompt_tokens: Length of the prompt; its first position has no log-probability.
    """

    def __init__(self, num_prompt_tokens: int) -> None:
        self._scores: list[TokenLogprobs | None] = [None] * num_prompt_tokens
        self._num_missing = num_prompt_tokens - 1

    def add(self, start: int, logprobs: SequenceABC[TokenLogprobs]) -> None:
        """Add those of positions `start`, `start + 1`, ...; computed again, they are replaced."""
        assert start >= 1, "the first position has no log-probability"
        for position, score in enumerate(logprobs, start):
            if position < len(self._scores):
                self._num_missing -= self._scores[position] is None
                self._scores[position] = score

    def complete(self) -> tuple[TokenLogprobs | None, ...] | None:
        """All of them, or None while positions after the first are missing."""
        return tuple(self._scores) if self._num_missing == 0 else None


@attrs.define(eq=False)
class RequestTree:
    """One live request.

    Attributes:
        request: As it was admitted.
        key: Its place in the order of service.
        rule: When its outputs end.
        sampling: What the runner is told for a sequence that computes no prompt logprobs.
        scoring: The same for the one that does.
        unforked: Indices of outputs that wait to be forked.
        live: Its sequences by index.
        num_finished: Outputs that ended by themselves, for `keep`.
        num_preemptions: Times one of its sequences was preempted.
        is_started: Whether it had its first place in a step.
        cached_tokens: Tokens it found in the prefix cache at that moment.
        prompt_scores: If prompt logprobs were asked for.
        beam_search: If it is one.
        beam_reports: In a beam search: what the runner reported, per beam, in this round.
        num_serials: Sequences made so far, which names the beams.
    """

    request: GenerationRequest
    key: RequestKey
    rule: FinishRule
    sampling: SamplingParams
    scoring: SamplingParams
    unforked: list[int]
    prompt_scores: PromptScores | None
    beam_search: BeamSearch | None
    live: dict[int, Sequence] = attrs.field(factory=dict[int, Sequence])
    num_finished: int = 0
    num_preemptions: int = 0
    is_started: bool = False
    cached_tokens: int = 0
    beam_reports: dict[Sequence, TokenLogprobs] = attrs.field(factory=dict[Sequence, TokenLogprobs])
    num_serials: int = 0

    @classmethod
    def of(
        cls,
        request: GenerationRequest,
        key: RequestKey,
        eos_token_ids: tuple[int, ...],
        max_model_len: int,
    ) -> RequestTree:
        """The tree of a new request: no sequence yet."""
        sampling = request.sampling
        num_prompt_tokens = request.num_prompt_tokens
        rule = FinishRule.of(sampling, eos_token_ids, num_prompt_tokens, max_model_len)
        beam_search = None
        scoring = sampling
        if sampling.beam_width is not None:
            beam_search = BeamSearch(sampling, rule, num_prompt_tokens)
            scoring = runner_sampling(sampling, len(rule.eos_token_ids) + len(rule.stop_token_ids))
        scores = None
        rest = scoring
        if sampling.prompt_logprobs is not None:
            scores = PromptScores(num_prompt_tokens)
            rest = attrs.evolve(scoring, prompt_logprobs=None)
        unforked = list(range(sampling.n)) if beam_search is None else [0]
        return cls(request, key, rule, rest, scoring, unforked, scores, beam_search)

    @property
    def request_id(self) -> RequestId:
        """The request."""
        return self.request.request_id

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt, without `prefix`."""
        return len(self.request.prompt_token_ids)

    @property
    def is_over(self) -> bool:
        """Whether every output has ended."""
        return not self.live and not self.unforked

    @property
    def is_decided(self) -> bool:
        """Whether enough outputs have finished: the others are not wanted any more."""
        keep = self.request.sampling.keep
        return keep is not None and self.num_finished >= keep

    def next_serial(self) -> int:
        """A number for one more sequence of a beam search."""
        self.num_serials += 1
        return self.num_serials - 1

    def report_beam(self, sequence: Sequence, report: TokenLogprobs) -> bool:
        """Note what the runner reported for a beam; whether the round is complete."""
        sequence.is_stalled = True
        self.beam_reports[sequence] = report
        return len(self.beam_reports) == len(self.live)

    def take_beam_round(self) -> list[tuple[Sequence, Beam, TokenLogprobs]]:
        """The beams of a complete round, in the order in which they were made."""
        reports, self.beam_reports = self.beam_reports, {}
        return [(s, s.beam, reports[s]) for _, s in sorted(self.live.items())]

    @property
    def phase(self) -> str:
        """For people: "waiting", "prefill", "decode" or "preempted"."""
        running = [s for s in self.live.values() if s.status is SequenceStatus.RUNNING]
        if not running:
            return "preempted" if self.is_started else "waiting"
        return "decode" if any(s.num_output_tokens for s in running) else "prefill"
