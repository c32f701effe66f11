"""One step: while it is planned, while it is in flight, and what came of it."""

from __future__ import annotations

from typing import NamedTuple

import attrs

from triolet.errors import InternalError
from triolet.messages.runner_to_scheduler import BatchResult
from triolet.messages.scheduler_to_runner import ScheduledSequence
from triolet.request import SequenceId
from triolet.scheduler.sequence import Sequence
from triolet.scheduler.tree import RequestTree


class Row(NamedTuple):
    """What a step in flight does to one sequence."""

    sequence: Sequence
    epoch: int
    """The sequence's epoch then: another one now means that it lost these blocks."""
    num_computed: int
    """Tokens computed after the step."""
    samples: bool


@attrs.define(eq=False)
class Plan:
    """One step in the making.

    Attributes:
        step: Its number.
        budget: Tokens that may still be added.
        idle: Whether no other step is in flight.
        rows: What to remember of it.
        scheduled: What the runner computes.
        new: Sequences whose state the runner does not hold.
        started: Requests that have their first place in a step.
        preempted: Whether a sequence was preempted: then nothing is admitted.
        has_no_victim: Whether a search for a sequence to preempt has failed.
        reserve: Blocks kept for what runs, once they were counted.
    """

    step: int
    budget: int
    idle: bool
    rows: list[Row] = attrs.field(factory=list[Row])
    scheduled: list[ScheduledSequence] = attrs.field(factory=list[ScheduledSequence])
    new: list[Sequence] = attrs.field(factory=list[Sequence])
    started: list[RequestTree] = attrs.field(factory=list[RequestTree])
    preempted: bool = False
    has_no_victim: bool = False
    reserve: float | None = None


@attrs.define
class PlannerCounts:
    """What happened since the start.

    Attributes:
        preemptions: Sequences that lost their blocks to another.
        computed_tokens: Tokens given to the runner.
        prompt_tokens: Those of them that belong to a prompt.
        recomputed_tokens: Those of them that had been computed before.
        prefix_queries: Tokens looked for in the prefix cache.
        prefix_hits: Tokens found there.
    """

    preemptions: int = 0
    computed_tokens: int = 0
    prompt_tokens: int = 0
    recomputed_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


@attrs.frozen
class StepInFlight:
    """A step given to the runner.

    Attributes:
        step: Its number.
        rows: What it does.
        sampled: Sequences that it gives a token, in batch order.
    """

    step: int
    rows: list[Row]
    sampled: list[SequenceId]

    @classmethod
    def of(cls, plan: Plan) -> StepInFlight:
        """The step that was planned."""
        sampled = [row.sequence.sequence_id for row in plan.rows if row.samples]
        return cls(plan.step, plan.rows, sampled)

    def check(self, result: BatchResult, vocab_size: int) -> None:
        """Refuse an answer that is not one to this step.

        Raises:
            InternalError: The runner cannot be trusted any more.
        """
        expected = self.sampled
        if result.errors:
            failed = {error.sequence_id for error in result.errors}
            expected = [sequence_id for sequence_id in expected if sequence_id not in failed]
        num_tokens = len(result.token_ids)
        if result.sequence_ids != expected or num_tokens != len(expected):
            raise InternalError(
                f"step {self.step} sampled for sequences {result.sequence_ids} "
                f"({num_tokens} tokens); {expected} were scheduled to sample"
            )
        if result.logprobs and len(result.logprobs) != num_tokens:
            raise InternalError(
                f"step {self.step} has {len(result.logprobs)} logprobs for {num_tokens} tokens"
            )
        if num_tokens:
            low, high = min(result.token_ids), max(result.token_ids)
            if low < 0 or high >= vocab_size:
                raise InternalError(
                    f"step {self.step} sampled token {low if low < 0 else high}; the "
                    f"vocabulary has {vocab_size}"
                )
