"""The live requests, and how their trees grow: tokens become facts, forks, beams and ends."""

from __future__ import annotations

from collections.abc import Iterator

from triolet.messages.runner_to_scheduler import PromptLogprobs
from triolet.messages.scheduler_to_dispatcher import (
    PromptScored,
    RequestErrored,
    RequestFinished,
    SchedulerFact,
    TokensSampled,
)
from triolet.output import TokenLogprobs
from triolet.request import FinishReason, RequestId, SequenceId
from triolet.scheduler.beam_search import Child
from triolet.scheduler.finish import Finish
from triolet.scheduler.plan import Row
from triolet.scheduler.planner import Planner
from triolet.scheduler.poison import Suspects
from triolet.scheduler.sequence import Sequence, SequenceStatus
from triolet.scheduler.tree import RequestTree

_CANCELLED = Finish(FinishReason.CANCELLED)


class Forest:
    """All live requests.

    Args:
        planner: Places their sequences.
        suspects: Told of sequences that end.

    Attributes:
        trees: The requests by id, in the order of arrival.
        facts: What happened and was not taken yet, in order.
        num_sampled: Tokens that became part of an output.
    """

    def __init__(self, planner: Planner, suspects: Suspects) -> None:
        self._planner = planner
        self._suspects = suspects
        self.trees: dict[RequestId, RequestTree] = {}
        self.facts: list[SchedulerFact] = []
        self.num_sampled = 0
        self._num_sequences = 0

    def sequences(self) -> Iterator[Sequence]:
        """Every live sequence."""
        for tree in self.trees.values():
            yield from tree.live.values()

    # Requests

    def plant(self, tree: RequestTree) -> None:
        """Start a request: its first output that is not over yet waits for its turn."""
        request = tree.request
        self.trees[tree.request_id] = tree
        tokens = [*request.prompt_token_ids, *request.prefix]
        if request.prefix:
            # A resume can bring an output that is over; the other outputs still run.
            finish = tree.rule.check(tokens[-1], len(request.prefix), len(tokens))
            if finish is not None:
                tree.unforked.remove(0)
                self._finish_output(tree, 0, finish, len(request.prefix))
                if not tree.unforked:
                    return
                tokens = list(request.prompt_token_ids)
        first = self._sequence(tree, tree.unforked.pop(0), tokens)
        first.sampling = tree.scoring
        self._planner.enqueue(first)

    def fell(self, request_id: RequestId) -> None:
        """Drop a request with all it holds; an unknown id is fine."""
        tree = self.trees.pop(request_id, None)
        if tree is None:
            return
        for sequence in tree.live.values():
            self._planner.remove(sequence)
        tree.live.clear()
        tree.unforked.clear()
        self._suspects.dismiss(request_id)

    def fail(self, request_id: RequestId, code: str, message: str) -> None:
        """End a live request with an error."""
        self.facts.append(RequestErrored(request_id, code, message))
        self.fell(request_id)

    def stop(self, request_id: RequestId, index: int, num_output_tokens: int) -> None:
        """A stop string ended an output; one that is over, or gone, is fine."""
        tree = self.trees.get(request_id)
        if tree is None or tree.beam_search is not None or index not in tree.live:
            return
        sequence = tree.live[index]
        num_tokens = tree.num_prompt_tokens + num_output_tokens
        assert num_tokens <= len(sequence.tokens), "a stop string in tokens that were not sent"
        self._planner.kv.forget_after(sequence.blocks, num_tokens)
        self._learn_growth(tree, num_output_tokens)
        self._end_sequence(sequence)
        tree.num_finished += 1
        self._settle(tree)

    # Results

    def grow(self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> None:
        """A live sequence has a new token."""
        tree = sequence.tree
        sequence.num_pending -= 1
        if sequence.sampling.prompt_logprobs is not None and not self._report_scores(sequence):
            return
        if tree.beam_search is not None:
            self._grow_beam(sequence, logprobs)
            return
        sequence.tokens.append(token)
        self.num_sampled += 1
        num_output_tokens = sequence.num_output_tokens
        entries = None
        if logprobs is not None and tree.request.sampling.logprobs is not None:
            entries = (logprobs,)
        self.facts.append(TokensSampled(tree.request_id, sequence.index, (token,), entries))
        finish = tree.rule.check(token, num_output_tokens, len(sequence.tokens))
        if tree.unforked:
            self._fork_siblings(sequence)
        if finish is not None:
            self._learn_growth(tree, num_output_tokens)
            self._end_sequence(sequence)
            self._finish_output(tree, sequence.index, finish, num_output_tokens)
        elif sequence.status is SequenceStatus.PARKED:
            self._planner.enqueue(sequence)

    def score_prompt(self, sequence: Sequence, scored: PromptLogprobs) -> None:
        """A chunk of a prompt has log-probabilities."""
        scores = sequence.tree.prompt_scores
        if scores is not None and sequence.sampling.prompt_logprobs is not None:
            scores.add(scored.start, scored.logprobs)

    def clear_suspect(self, sequence: Sequence, row: Row) -> None:
        """A step with this row has ended: does that clear its request?"""
        if row.epoch == sequence.epoch:
            request_id = sequence.tree.request_id
            self._suspects.progressed(request_id, sequence.sequence_id, row.num_computed)

    def check_integrity(self) -> None:
        """Assert that trees are alive and their sequences too."""
        for request_id, tree in self.trees.items():
            assert tree.request_id == request_id
            assert not tree.is_over, f"{request_id} is over and still live"
            for index, sequence in tree.live.items():
                assert sequence.index == index
                assert sequence.tree is tree
                assert sequence.status not in (SequenceStatus.ENDED, SequenceStatus.NEW)
                waits = sequence.num_pending > 0 or sequence.is_stalled
                assert sequence.status is not SequenceStatus.PARKED or waits, "parked for nothing"
        for request_id in self._suspects.request_ids:
            assert request_id in self.trees, f"suspect {request_id} is gone"

    # Leaves

    def _sequence(self, tree: RequestTree, index: int, tokens: list[int]) -> Sequence:
        self._num_sequences += 1
        sequence = Sequence(
            sequence_id=SequenceId(self._num_sequences),
            tree=tree,
            index=index,
            key=(*tree.key, index),
            tokens=tokens,
            sampling=tree.sampling,
            blocks=self._planner.kv.sequence_blocks(tree.request.cache_salt),
        )
        tree.live[index] = sequence
        tree.num_serials = max(tree.num_serials, index + 1)
        return sequence

    def _fork_siblings(self, parent: Sequence) -> None:
        """The prompt is computed: the other outputs start from it.

        The last token of the prompt is computed again by each, for its first logits.
        """
        tree = parent.tree
        indices, tree.unforked = tree.unforked, []
        for index in indices:
            child = self._sequence(tree, index, list(tree.request.prompt_token_ids))
            self._planner.fork(parent, child, tree.num_prompt_tokens - 1)

    def _report_scores(self, sequence: Sequence) -> bool:
        """The prompt is computed: its scores must be there, or the request fails."""
        tree = sequence.tree
        assert tree.prompt_scores is not None
        scores = tree.prompt_scores.complete()
        if scores is None:
            message = "the model runner did not report the log-probabilities of the whole prompt"
            self.fail(tree.request_id, "internal_error", message)
            return False
        self.facts.append(PromptScored(tree.request_id, scores))
        sequence.sampling = tree.sampling
        return True

    def _learn_growth(self, tree: RequestTree, num_output_tokens: int) -> None:
        allowed = tree.rule.num_tokens_max - tree.num_prompt_tokens
        self._planner.growth.learn(num_output_tokens, allowed)

    def _end_sequence(self, sequence: Sequence) -> None:
        tree = sequence.tree
        del tree.live[sequence.index]
        self._planner.remove(sequence)
        self._suspects.sequence_ended(tree.request_id, sequence.sequence_id)

    def _finish_output(
        self, tree: RequestTree, index: int, finish: Finish, num_output_tokens: int
    ) -> None:
        """Say that an output ended by itself, and draw the conclusions."""
        self._say_finished(tree, index, finish, num_output_tokens)
        tree.num_finished += 1
        self._settle(tree)

    def _say_finished(
        self, tree: RequestTree, index: int, finish: Finish, num_output_tokens: int
    ) -> None:
        self.facts.append(
            RequestFinished(
                tree.request_id,
                index,
                finish.reason,
                finish.stop_reason,
                num_output_tokens,
                finish.drop_stop_token,
            )
        )

    def _settle(self, tree: RequestTree) -> None:
        """An output ended: cancel the others if `keep` is reached, and end what is over."""
        if tree.is_decided:
            for sequence in list(tree.live.values()):
                num_output_tokens = sequence.num_output_tokens
                self._end_sequence(sequence)
                self._say_finished(tree, sequence.index, _CANCELLED, num_output_tokens)
            for index in tree.unforked:
                self._say_finished(tree, index, _CANCELLED, 0)
            tree.unforked.clear()
        if tree.is_over:
            self.fell(tree.request_id)

    # Beam search

    def _grow_beam(self, sequence: Sequence, report: TokenLogprobs | None) -> None:
        tree = sequence.tree
        if report is None:
            message = "the model runner did not report the log-probabilities of a beam"
            self.fail(tree.request_id, "internal_error", message)
        elif tree.report_beam(sequence, report):
            self._advance_beams(tree)

    def _advance_beams(self, tree: RequestTree) -> None:
        """Every beam of a round has its candidates: choose the next ones."""
        assert tree.beam_search is not None
        beams = tree.take_beam_round()
        children = tree.beam_search.advance([(beam, report) for _, beam, report in beams])
        if not children:
            self._finish_beams(tree)
            return
        by_parent: dict[int, list[Child]] = {}
        for child in children:
            by_parent.setdefault(child.parent, []).append(child)
        for index, (sequence, _, report) in enumerate(beams):
            chosen = by_parent.get(index, [])
            # Forks first: they share blocks that the parent holds now.
            for child in chosen[1:]:
                self._fork_beam(sequence, child)
            if chosen:
                self._continue_beam(sequence, chosen[0], report)
            else:
                self._end_sequence(sequence)

    def _fork_beam(self, parent: Sequence, child: Child) -> None:
        tree = parent.tree
        sequence = self._sequence(tree, tree.next_serial(), [*parent.tokens, child.token])
        sequence.beam = child.beam
        self._planner.fork(parent, sequence, len(parent.tokens))

    def _continue_beam(self, sequence: Sequence, child: Child, report: TokenLogprobs) -> None:
        sequence.tokens.append(child.token)
        sequence.beam = child.beam
        sequence.is_stalled = False
        if child.token != report.token_id:
            # The runner's copy has grown by another token: send the state again.
            self._planner.forget(sequence)
        if sequence.status is SequenceStatus.PARKED:
            self._planner.enqueue(sequence)

    def _finish_beams(self, tree: RequestTree) -> None:
        assert tree.beam_search is not None
        request_id, sampling = tree.request_id, tree.request.sampling
        best = tree.beam_search.hypotheses[: sampling.n]
        for index, hypothesis in enumerate(best):
            entries = None if sampling.logprobs is None else hypothesis.entries
            self.facts.append(TokensSampled(request_id, index, hypothesis.token_ids, entries))
            length = len(hypothesis.entries)
            self.num_sampled += length
            self._learn_growth(tree, length)
            self._say_finished(tree, index, hypothesis.finish, length)
        for index in range(len(best), sampling.n):
            # The vocabulary left too few continuations: this output does not exist.
            self._say_finished(tree, index, _CANCELLED, 0)
        self.fell(request_id)
