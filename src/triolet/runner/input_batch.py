"""ScheduledBatch -> the tensors of one step.

The batch is packed: one flat row of tokens, prefill chunks and decodes one behind the other,
without padding. A few array operations build all of it; the only Python loops run over
sequences, never over tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet.messages.scheduler_to_runner import ScheduledSequence
from triolet.runner.sequence_table import RunningSequence, SequenceTable
from triolet_kernels.ops import AttentionBatch


@dataclasses.dataclass(frozen=True, slots=True)
class InputBatch:
    """One step, ready for the model.

    Attributes:
        token_ids: int64 [T].
        attention: One per KV group.
        sequences: The S sequences of the batch, in order.
        last_rows: int64 [S], row of the last token of each sequence.
    """

    token_ids: Tensor
    attention: tuple[AttentionBatch, ...]
    sequences: list[RunningSequence]
    last_rows: NDArray[np.int64]


def to_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """The array as a tensor: the same memory on CPU, an asynchronous copy elsewhere."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


@dataclasses.dataclass(frozen=True, slots=True)
class StepArrays:
    """One step on the host, copied out of the table, which may change afterwards.

    Attributes:
        sequences: The S sequences, in order.
        token_ids: int64 [T]; of tokens that are not known yet, anything.
        positions: int64 [T].
        sources: int64 [S]; where the last step in flight samples the token of a sequence's
            last row, its place there, else -1.
        query_starts: int64 [S + 1].
        context_lens: int64 [S].
        slots: Per KV group int64 [T].
        block_tables: Per KV group int32 [S, max blocks], contiguous.
        max_query_len: The longest run of rows of one sequence.
    """

    sequences: list[RunningSequence]
    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    sources: NDArray[np.int64]
    query_starts: NDArray[np.int64]
    context_lens: NDArray[np.int64]
    slots: list[NDArray[np.int64]]
    block_tables: list[NDArray[np.int32]]
    max_query_len: int

    @property
    def last_rows(self) -> NDArray[np.int64]:
        """int64 [S], row of the last token of each sequence."""
        return self.query_starts[1:] - 1


def pack_step(
    scheduled: Sequence[ScheduledSequence], table: SequenceTable, block_size: int, num_blocks: int
) -> StepArrays:
    """Pack one step.

    Args:
        scheduled: At least one sequence, each held by `table` with its new blocks appended.
        table: Tokens and block tables.
        block_size: Tokens per KV block.
        num_blocks: Blocks in the pool.
    """
    sequences = [table[s.sequence_id] for s in scheduled]
    rows = np.array([s.row for s in sequences], np.int64)
    computed = np.array([s.num_computed_tokens for s in scheduled], np.int64)
    new = np.array([s.num_new_tokens for s in scheduled], np.int64)
    context = computed + new
    known = np.array([s.num_tokens for s in sequences], np.int64)
    ahead = np.array([s.num_tokens_ahead for s in sequences], np.int64)
    assert (new > 0).all(), scheduled
    assert (computed >= 0).all(), scheduled
    assert (context <= ahead).all(), scheduled
    # Of the tokens on the device only the last one can be fetched, and only as a last row.
    assert ((context <= known) | ((context == ahead) & (context <= computed + 1))).all(), scheduled
    pending = np.array([s.pending_row for s in sequences], np.int64)
    query_starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(new, out=query_starts[1:])
    num_rows = int(query_starts[-1])
    if num_rows == len(rows):  # decodes only
        row_of_token, positions = rows, computed
    else:
        row_of_token = np.repeat(rows, new)
        positions = np.arange(num_rows) + np.repeat(computed - query_starts[:-1], new)

    max_blocks = -(-int(context.max()) // block_size)
    block_of_token, offset = np.divmod(positions, block_size)
    slots: list[NDArray[np.int64]] = []
    block_tables: list[NDArray[np.int32]] = []
    for group, blocks in enumerate(table.blocks):
        held = np.array([s.num_blocks[group] for s in sequences], np.int64)
        assert (held * block_size >= context).all(), (group, scheduled)
        slots.append(blocks[row_of_token, block_of_token] * np.int64(block_size) + offset)
        # A kernel writes there without looking.
        assert slots[-1].min() >= 0, (group, scheduled)
        assert slots[-1].max() < num_blocks * block_size, (group, scheduled)
        # numpy picks the memory order of such a result itself, kernels want rows
        block_tables.append(np.ascontiguousarray(blocks[rows, :max_blocks]))
    return StepArrays(
        sequences=sequences,
        token_ids=table.tokens[row_of_token, positions].astype(np.int64),
        positions=positions,
        sources=np.where(context > known, pending, -1),
        query_starts=query_starts,
        context_lens=context,
        slots=slots,
        block_tables=block_tables,
        max_query_len=int(new.max()),
    )


def build_input_batch(
    step: StepArrays, device: torch.device, sampled: Tensor | None = None
) -> InputBatch:
    """Bring a step to its device.

    Args:
        step: On the host.
        device: Where the tensors go.
        sampled: int64 [max sequences] on the device, tokens of the last step that was
            launched; None where no step has tokens that are not known yet.
    """
    token_ids = to_device(step.token_ids, device)
    waiting = np.flatnonzero(step.sources >= 0)
    if len(waiting):
        assert sampled is not None, "tokens of steps in flight are kept on the device"
        rows = to_device(step.last_rows[waiting], device)
        token_ids[rows] = sampled[to_device(step.sources[waiting], device)]
    positions = to_device(step.positions, device)
    starts = to_device(step.query_starts.astype(np.int32), device)
    context_lens = to_device(step.context_lens.astype(np.int32), device)
    attention = [
        AttentionBatch(
            positions=positions,
            slots=to_device(slots, device),
            query_starts=starts,
            context_lens=context_lens,
            block_table=to_device(block_table, device),
            max_query_len=step.max_query_len,
            max_context_len=int(step.context_lens.max()),
        )
        for slots, block_table in zip(step.slots, step.block_tables, strict=True)
    ]
    return InputBatch(
        token_ids=token_ids,
        attention=tuple(attention),
        sequences=step.sequences,
        last_rows=step.last_rows,
    )
