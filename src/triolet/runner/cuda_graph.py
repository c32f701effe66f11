"""The decode step as CUDA graphs: one per batch size of a ladder.

A decode step of a model with 32 layers is some 300 kernels, and queueing them one by one takes
longer than they run. A graph queues all of them at once, but it reads and writes the same
addresses every time. So everything that changes from step to step lies in buffers that stay
where they are:

    host arrays --one copy each--> buffers --> [ tokens of the last step where they are not known
                                                 yet, embedding, layers, logits, one token per
                                                 row ] --> tokens, and buffer of the last step

A batch takes the smallest graph that holds it. The rows that are too many are a sequence of one
token each, in a block of the KV cache that belongs to nobody.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet.models.causal_lm import CausalLM
from triolet.runner.cuda_device import DeviceQueue, Graph
from triolet.runner.input_batch import StepArrays, to_device
from triolet.runner.kv_tensors import KVTensors
from triolet.runner.sampler import SamplingArrays, draw, mask_padding
from triolet_kernels.ops import AttentionBatch, Ops, SamplingBatch

_GRAPH_ROWS_MAX = 512
"""Above that a step computes so long that queueing it hides behind the one before."""

# Rows of the integer buffer; the slots of the KV groups follow.
_TOKEN, _SOURCE, _POSITION, _CONTEXT, _NUM_FIXED = range(5)


def batch_size_ladder(max_num_seqs: int) -> list[int]:
    """Batch sizes that get a graph, ascending: 1, 2, 4, then in eighths of what is usual."""
    limit = min(max_num_seqs, _GRAPH_ROWS_MAX)
    steps = [1, 2, 4, *range(8, 257, 8), *range(272, _GRAPH_ROWS_MAX + 1, 16)]
    return [size for size in steps if size < limit] + [limit]


@attrs.frozen
class DecodeOutput:
    """What a decode step leaves on the device, until the next one is queued.

    Attributes:
        logits: float32 [R, V].
        tokens: int64 [R], drawn from them as they are.
        chosen: float32 [R], their logits; NaN where there is none.
    """

    logits: Tensor
    tokens: Tensor
    chosen: Tensor


class DecodeGraphs:
    """Captures decode steps and runs them.

    Args:
        model: The model.
        ops: Its kernels.
        kv: Its KV cache, with one block more than the scheduler knows of.
        queue: The device.
        sampled: int64 [max_num_seqs], tokens of the last step; read and written.
        vocab_size: Ids below this may be sampled.
        num_blocks: Blocks that the scheduler knows of: the index of the one that is nobody's.
        block_size: Tokens per block.
        max_model_len: Longest context.
    """

    def __init__(
        self,
        model: CausalLM,
        ops: Ops,
        kv: KVTensors,
        queue: DeviceQueue,
        sampled: Tensor,
        *,
        vocab_size: int,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
    ) -> None:
        self._model = model
        self._ops = ops
        self._kv = kv
        self._queue = queue
        self._sampled = sampled
        self._vocab_size = vocab_size
        self._nobodys_block = num_blocks
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._sizes = batch_size_ladder(len(sampled))
        self._graphs: dict[int, Graph] = {}
        rows, groups = self._sizes[-1], len(kv.layout.groups)

        def buffer(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=ops.device)

        self._integers = buffer(_NUM_FIXED + groups, rows, dtype=torch.int64)
        self._parameters = buffer(5, rows, dtype=torch.float64)
        width = -(-max_model_len // block_size)
        self._tables = buffer(groups, rows, width, dtype=torch.int32)
        self._starts = torch.arange(rows + 1, dtype=torch.int32, device=ops.device)

    def capture(self, progress: Callable[[str], None]) -> None:
        """Capture every size, the largest first: the others then fit in its memory."""
        for done, size in enumerate(reversed(self._sizes)):
            progress(f"capturing decode step {done + 1} of {len(self._sizes)}")
            self._fill_rest(0, size)
            self._graphs[size] = self._queue.capture(functools.partial(self._step, size))

    def fits(self, num_sequences: int) -> bool:
        """Whether there is a graph for that many rows."""
        return num_sequences <= self._sizes[-1]

    def run(self, step: StepArrays, parameters: SamplingArrays) -> DecodeOutput:
        """Queue a step of decodes.

        Args:
            step: One row per sequence.
            parameters: Of the rows.
        """
        num_rows = len(step.sequences)
        assert len(step.token_ids) == num_rows, "only decodes are captured"
        size = self._sizes[bisect.bisect_left(self._sizes, num_rows)]
        device = self._ops.device
        integers = np.stack(
            [step.token_ids, step.sources, step.positions, step.context_lens, *step.slots]
        )
        numbers = np.stack([
            np.asarray(column, np.float64)
            for column in (
                parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p,
                parameters.uniform,
            )
        ])  # fmt: skip
        self._integers[:, :num_rows].copy_(to_device(integers, device))
        self._parameters[:, :num_rows].copy_(to_device(numbers, device))
        tables: NDArray[np.int32] = np.stack(step.block_tables)
        self._tables[:, :num_rows, : tables.shape[2]].copy_(to_device(tables, device))
        self._fill_rest(num_rows, size)
        logits, tokens, chosen = self._graphs[size].replay()
        return DecodeOutput(logits[:num_rows], tokens[:num_rows], chosen[:num_rows])

    def close(self) -> None:
        """Drop the graphs and with them their memory."""
        self._graphs.clear()

    def _fill_rest(self, num_rows: int, size: int) -> None:
        """Make rows `num_rows` to `size` one token each, in the block that is nobody's."""
        if num_rows == size:
            return
        rest = slice(num_rows, size)
        self._integers[:, rest] = 0
        self._integers[_SOURCE, rest] = -1
        self._integers[_CONTEXT, rest] = 1
        self._integers[_NUM_FIXED:, rest] = self._nobodys_block * self._block_size
        self._tables[:, rest, 0] = self._nobodys_block
        self._parameters[:, rest] = 0.0

    def _step(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """What is captured: logits [size, V], tokens [size] and their logits [size]."""
        integers = self._integers[:, :size]
        source = integers[_SOURCE]
        on_device = self._sampled[source.clamp(min=0)]
        token_ids = torch.where(source >= 0, on_device, integers[_TOKEN])
        layers = self._kv.layers(self._attention(size))
        logits = self._model.logits(self._model.forward(token_ids, layers))
        mask_padding(logits, self._vocab_size)
        temperature, top_k, top_p, min_p, uniform = self._parameters[:, :size]
        batch = SamplingBatch(
            temperature=temperature.to(torch.float32),
            top_k=top_k.to(torch.int32),
            top_p=top_p.to(torch.float32),
            min_p=min_p.to(torch.float32),
            uniform=uniform.contiguous(),
            all_greedy=False,
        )
        tokens, chosen = draw(self._ops, logits, batch)
        self._sampled[:size].copy_(tokens)
        return logits, tokens, chosen

    def _attention(self, size: int) -> Sequence[AttentionBatch]:
        """One per KV group, on the buffers. Made anew: a batch is known by its identity."""
        integers = self._integers[:, :size]
        context_lens = integers[_CONTEXT].to(torch.int32)
        return [
            AttentionBatch(
                positions=integers[_POSITION],
                slots=integers[_NUM_FIXED + group],
                query_starts=self._starts[: size + 1],
                context_lens=context_lens,
                block_table=self._tables[group, :size],
                max_query_len=1,
                max_context_len=self._max_model_len,
            )
            for group in range(len(self._tables))
        ]
