"""What the runner remembers of the sequences it holds, as columns.

A batch says only what changed, so the runner keeps tokens, block tables and sampling parameters
itself: one row per sequence in a few arrays that grow. The numbers of a whole batch are then
picked by a handful of array operations, however many sequences or tokens it has.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from triolet.errors import TrioletError
from triolet.grammar.matcher import Matcher
from triolet.messages.scheduler_to_runner import ScheduledSequence, SequenceState
from triolet.request import SequenceId
from triolet.runner.keyed_random import stream_key
from triolet.runner.logit_edits import LogitEdits

_D = TypeVar("_D", bound=np.generic)
_FIRST_ROWS = 16
_FIRST_COLUMNS = 64


@dataclasses.dataclass(slots=True)
class RunningSequence:
    """One sequence the runner holds.

    Attributes:
        state: As it came, without what was sampled since.
        row: Its row in the table.
        num_tokens: Tokens known, prompt and output.
        num_pending: Tokens that steps in flight sample: on the device, not known here yet.
        pending_row: Where the last of them is among those the last step sampled.
        num_blocks: Per KV group, entries of its block table.
        random_key: Of its random numbers, see `keyed_random`.
        edits: What changes its logits, None if nothing does.
        matcher: Of its grammar, None if it is free.
        failure: Why it cannot be sampled; it is reported whenever it is scheduled.
    """

    state: SequenceState
    row: int
    num_tokens: int
    num_blocks: list[int]
    random_key: int
    edits: LogitEdits | None
    matcher: Matcher | None = None
    failure: TrioletError | None = None
    num_pending: int = 0
    pending_row: int = -1

    @property
    def num_tokens_ahead(self) -> int:
        """Tokens there are once the steps in flight are done."""
        return self.num_tokens + self.num_pending

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far, those of an earlier life included."""
        return self.num_tokens - self.state.num_prompt_tokens


class SequenceTable:
    """Columns of all sequences. Memory is kept for the most and the longest ever held.

    Attributes:
        tokens: int32 [rows, columns], token ids by position.
        blocks: Per KV group int32 [rows, columns], block ids in order.
        temperature: float32 [rows], 0 for greedy rows.
        top_k: int32 [rows], 0 keeps all.
        top_p: float32 [rows], 1 keeps all.
        min_p: float32 [rows], 0 keeps all.
    """

    def __init__(self, num_groups: int) -> None:
        """Make an empty table.

        Args:
            num_groups: KV groups of the model.
        """
        self.tokens = np.zeros((_FIRST_ROWS, _FIRST_COLUMNS), np.int32)
        self.blocks = [np.zeros((_FIRST_ROWS, _FIRST_COLUMNS), np.int32) for _ in range(num_groups)]
        self.temperature = np.zeros(_FIRST_ROWS, np.float32)
        self.top_k = np.zeros(_FIRST_ROWS, np.int32)
        self.top_p = np.ones(_FIRST_ROWS, np.float32)
        self.min_p = np.zeros(_FIRST_ROWS, np.float32)
        self._sequences: dict[SequenceId, RunningSequence] = {}
        self._free_rows = list(range(_FIRST_ROWS - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, sequence_id: SequenceId) -> RunningSequence:
        """The sequence of that id.

        Raises:
            KeyError: The scheduler names a sequence that was never sent: a bug.
        """
        return self._sequences[sequence_id]

    def add(self, state: SequenceState) -> RunningSequence:
        """Take a sequence, in place of any other of that id. Its block tables are empty."""
        assert 1 <= state.num_prompt_tokens <= len(state.token_ids), state.sequence_id
        assert state.sampling.seed is not None, "the engine gives every request a seed"
        self.remove(state.sequence_id)
        if not self._free_rows:
            self._grow_rows()
        row = self._free_rows.pop()
        num_tokens = len(state.token_ids)
        self.tokens = _with_columns(self.tokens, num_tokens + 1)
        self.tokens[row, :num_tokens] = state.token_ids
        sampling = state.sampling
        greedy = sampling.is_greedy
        self.temperature[row] = 0.0 if greedy else sampling.temperature
        self.top_k[row] = 0 if greedy else max(0, sampling.top_k)
        self.top_p[row] = 1.0 if greedy else sampling.top_p
        self.min_p[row] = 0.0 if greedy else sampling.min_p
        sequence = RunningSequence(
            state=state,
            row=row,
            num_tokens=num_tokens,
            num_blocks=[0] * len(self.blocks),
            random_key=stream_key(state.sampling.seed, state.sample_index),
            edits=LogitEdits.of(state),
        )
        self._sequences[state.sequence_id] = sequence
        return sequence

    def remove(self, sequence_id: SequenceId) -> None:
        """Forget a sequence; an unknown id is fine (it may have ended before its first step)."""
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is not None:
            self._free_rows.append(sequence.row)

    def append_blocks(self, scheduled: ScheduledSequence) -> None:
        """Append the new block ids of one scheduled sequence to its block tables."""
        sequence = self._sequences[scheduled.sequence_id]
        assert len(scheduled.new_block_ids) == len(self.blocks), scheduled
        for group, new in enumerate(scheduled.new_block_ids):
            if new:
                start = sequence.num_blocks[group]
                sequence.num_blocks[group] = end = start + len(new)
                self.blocks[group] = _with_columns(self.blocks[group], end)
                self.blocks[group][sequence.row, start:end] = new

    def holds(self, sequence: RunningSequence) -> bool:
        """Whether a sequence is still held; it may have ended while a step was in flight."""
        return self._sequences.get(sequence.state.sequence_id) is sequence

    def expect_token(self, sequence: RunningSequence, row: int) -> None:
        """Note that a launched step samples one more token of a sequence.

        Args:
            sequence: Held.
            row: Place of the token among all that the step samples.
        """
        sequence.num_pending += 1
        sequence.pending_row = row
        self.tokens = _with_columns(self.tokens, sequence.num_tokens_ahead + 1)

    def append_token(self, sequence: RunningSequence, token_id: int) -> None:
        """Append a sampled token."""
        self.tokens = _with_columns(self.tokens, sequence.num_tokens + 1)
        self.tokens[sequence.row, sequence.num_tokens] = token_id
        sequence.num_tokens += 1
        if sequence.edits is not None:
            sequence.edits.append(token_id)

    def token_ids(self, sequence: RunningSequence) -> list[int]:
        """All known tokens of a sequence."""
        return cast("list[int]", self.tokens[sequence.row, : sequence.num_tokens].tolist())

    def check_integrity(self) -> None:
        """Assert that rows are held once and are within the arrays."""
        rows = [s.row for s in self._sequences.values()] + self._free_rows
        assert sorted(rows) == list(range(len(self.tokens)))
        for sequence in self._sequences.values():
            assert sequence.num_tokens <= self.tokens.shape[1]

    def _grow_rows(self) -> None:
        """Double the rows of every column."""
        old = len(self.tokens)
        self._free_rows = list(range(2 * old - 1, old - 1, -1))
        self.tokens = _doubled(self.tokens)
        self.blocks = [_doubled(table) for table in self.blocks]
        self.temperature = _doubled(self.temperature)
        self.top_k = _doubled(self.top_k)
        self.top_p = _doubled(self.top_p)
        self.min_p = _doubled(self.min_p)


def _doubled(column: NDArray[_D]) -> NDArray[_D]:
    """The same rows and as many empty ones."""
    return np.concatenate([column, np.zeros_like(column)])


def _with_columns(table: NDArray[np.int32], columns: int) -> NDArray[np.int32]:
    """The table itself if it has that many columns, else a copy at least twice as wide."""
    if columns <= table.shape[1]:
        return table
    wider = np.zeros((len(table), max(columns, 2 * table.shape[1])), np.int32)
    wider[:, : table.shape[1]] = table
    return wider
