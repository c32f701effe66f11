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


def build_input_batch(
    scheduled: Sequence[ScheduledSequence],
    table: SequenceTable,
    block_size: int,
    num_blocks: int,
    device: torch.device,
) -> InputBatch:
    """Pack one step.

    Args:
        scheduled: At least one sequence, each held by `table` with its new blocks appended.
        table: Tokens and block tables.
        block_size: Tokens per KV block.
        num_blocks: Blocks in the pool.
        device: Where the tensors go.

    Returns:
        The batch; its arrays are copies, so `table` may change while a device still reads.
    """
    sequences = [table[s.sequence_id] for s in scheduled]
    rows = np.array([s.row for s in sequences], np.int64)
    computed = np.array([s.num_computed_tokens for s in scheduled], np.int64)
    new = np.array([s.num_new_tokens for s in scheduled], np.int64)
    context = computed + new
    known = np.array([s.num_tokens for s in sequences], np.int64)
    assert (new > 0).all(), scheduled
    assert (computed >= 0).all(), scheduled
    assert (context <= known).all(), scheduled
    query_starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(new, out=query_starts[1:])
    num_rows = int(query_starts[-1])
    if num_rows == len(rows):  # decodes only
        row_of_token, positions = rows, computed
    else:
        row_of_token = np.repeat(rows, new)
        positions = np.arange(num_rows) + np.repeat(computed - query_starts[:-1], new)
    token_ids = table.tokens[row_of_token, positions].astype(np.int64)

    max_context_len = int(context.max())
    max_blocks = -(-max_context_len // block_size)
    block_of_token, offset = np.divmod(positions, block_size)
    positions_t = to_device(positions, device)
    starts_t = to_device(query_starts.astype(np.int32), device)
    context_t = to_device(context.astype(np.int32), device)
    attention: list[AttentionBatch] = []
    for group, blocks in enumerate(table.blocks):
        held = np.array([s.num_blocks[group] for s in sequences], np.int64)
        assert (held * block_size >= context).all(), (group, scheduled)
        slots = blocks[row_of_token, block_of_token] * np.int64(block_size) + offset
        # A kernel writes there without looking.
        assert slots.min() >= 0, (group, scheduled)
        assert slots.max() < num_blocks * block_size, (group, scheduled)
        attention.append(
            AttentionBatch(
                positions=positions_t,
                slots=to_device(slots, device),
                query_starts=starts_t,
                context_lens=context_t,
                # numpy picks the memory order of such a result itself, kernels want rows
                block_table=to_device(np.ascontiguousarray(blocks[rows, :max_blocks]), device),
                max_query_len=int(new.max()),
                max_context_len=max_context_len,
            )
        )
    return InputBatch(
        token_ids=to_device(token_ids, device),
        attention=tuple(attention),
        sequences=sequences,
        last_rows=query_starts[1:] - 1,
    )
