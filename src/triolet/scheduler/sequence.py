"""One sequence: its tokens, how far they are computed, and where it stands."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

from triolet.request import SequenceId
from triolet.sampling_params import SamplingParams
from triolet.scheduler.beam_search import Beam
from triolet.scheduler.kv_cache_manager import SequenceBlocks
from triolet.scheduler.policy import SequenceKey

if TYPE_CHECKING:
    from triolet.scheduler.tree import RequestTree


class SequenceStatus(enum.Enum):
    """Where a sequence stands. Only a running one holds blocks."""

    NEW = "new"
    """Made, not placed yet."""
    WAITING = "waiting"
    """In the queue: it could run if there were room."""
    RUNNING = "running"
    """In the running set."""
    PARKED = "parked"
    """Preempted, and not to be resumed before a step in flight, or its sibling beams, say how
    it goes on."""
    ENDED = "ended"


@attrs.define(eq=False)
class Sequence:
    """One sequence of a request.

    Attributes:
        sequence_id: Its name at the runner; never reused.
        tree: Its request.
        index: Which of the outputs; for beams a serial number.
        key: Its place in the order of service.
        tokens: All tokens that are known, prompt and output.
        sampling: What the runner is told.
        blocks: Its KV blocks.
        status: Where it stands.
        num_computed: Tokens whose KV is in the cache once the steps in flight are done.
        num_confirmed: Tokens whose KV is in the cache now.
        num_pending: Tokens that steps in flight will sample.
        num_sent_blocks: Length of the block table that the runner has.
        num_seen: Highest `num_confirmed` ever, to count what is computed again.
        epoch: Counts the times it lost its blocks: a row of another epoch says nothing
            about the blocks held now.
        is_at_runner: Whether the runner holds its state.
        is_stalled: Whether it has its candidates and waits for its sibling beams.
        beam: Its score, in a beam search.
    """

    sequence_id: SequenceId
    tree: RequestTree
    index: int
    key: SequenceKey
    tokens: list[int]
    sampling: SamplingParams
    blocks: SequenceBlocks
    status: SequenceStatus = SequenceStatus.NEW
    num_computed: int = 0
    num_confirmed: int = 0
    num_pending: int = 0
    num_sent_blocks: int = 0
    num_seen: int = 0
    epoch: int = 0
    is_at_runner: bool = False
    is_stalled: bool = False
    beam: Beam = attrs.field(factory=Beam)

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the output that are known."""
        return len(self.tokens) - self.tree.num_prompt_tokens

    @property
    def num_to_compute(self) -> int:
        """Tokens to compute before the next one can be sampled; 0: not now.

        1 is a decode (or the end of a prefill), more is a prefill.
        """
        known = len(self.tokens) + self.num_pending
        if self.num_pending:
            # A beam's next token is chosen here, not by the runner; and where steps in
            # flight already sample the last token there can be, nothing follows.
            if self.tree.beam_search is not None or known >= self.tree.rule.num_tokens_max:
                return 0
        elif self.is_stalled:
            return 0
        return known - self.num_computed

    def lose_blocks(self) -> None:
        """Note that its blocks are gone: everything must be computed again."""
        self.num_computed = 0
        self.num_confirmed = 0
        self.epoch += 1
