"""Scheduler to runner. Bound: steps in flight.

A batch carries only what changed: a sequence the runner does not hold travels whole, once;
after that it is named by its id and the runner's own copy grows by what the runner sampled.
"""

from __future__ import annotations

import attrs

from triolet.request import SequenceId
from triolet.sampling_params import SamplingParams


@attrs.frozen
class SequenceState:
    """A sequence the runner does not hold: new, forked, resumed, or after a restart.

    Attributes:
        sequence_id: Its name from now on; a state already held under it is replaced.
        token_ids: Prompt and output so far: all tokens that are known.
        num_prompt_tokens: How many of them are prompt.
        sampling: Its sampling parameters, `seed` set.
        sample_index: Which of the n outputs of its request: keys the random numbers
            together with the seed and the position.
        eos_token_ids: Ids of EOS, so that `min_tokens` can mask them.
    """

    sequence_id: SequenceId
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    sample_index: int
    eos_token_ids: tuple[int, ...]


@attrs.frozen
class ScheduledSequence:
    """What one sequence computes in this step.

    Attributes:
        sequence_id: Which sequence.
        num_computed_tokens: Tokens whose KV is already in the cache; also the position of
            the first token computed now.
        num_new_tokens: Tokens to compute: a chunk of a prefill, or 1 in decode.
        new_block_ids: Per KV group, block ids to append to its block table. For a sequence
            of `ScheduledBatch.new` this is the whole table. Entries whose tokens have left
            the group's window are never read and may hold any id.
        samples: Whether the last token computed is the last one known, so that the row
            yields logits and a new token.
    """

    sequence_id: SequenceId
    num_computed_tokens: int
    num_new_tokens: int
    new_block_ids: tuple[list[int], ...]
    samples: bool


@attrs.frozen
class ScheduledBatch:
    """One step.

    Attributes:
        incarnation: Which life of the runner it is for; results of another are dropped.
        step: Number of the step, increasing.
        new: Sequences the runner does not hold yet, each also in `scheduled`.
        scheduled: What to compute, in the order of the packed batch.
        ended: Sequences the runner may forget, before anything else.
    """

    incarnation: int
    step: int
    new: list[SequenceState]
    scheduled: list[ScheduledSequence]
    ended: list[SequenceId]

    @property
    def num_tokens(self) -> int:
        """Rows of the packed batch."""
        return sum(s.num_new_tokens for s in self.scheduled)
