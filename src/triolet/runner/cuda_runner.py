"""What `ModelRunner` does more on a device with a queue: memory, captured steps, tokens.

    launch N     pack, queue the step; its tokens stay on the device in `sampled`
    launch N+1   pack; where a token of step N is needed, the device takes it from `sampled`
    collect N    wait for the event of step N, read its tokens from page-locked memory

So the host packs a step while the device computes the one before. It must know the tokens of
step N only for rows whose sampling reads them on the host (bad words, grammars, `min_tokens`): a
step with such rows waits for the one before, and nothing else does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from triolet.config import EngineConfig
from triolet.messages.scheduler_to_runner import ScheduledSequence
from triolet.models.causal_lm import CausalLM
from triolet.runner import kv_tensors
from triolet.runner.cuda_device import DeviceQueue, Event
from triolet.runner.cuda_graph import DecodeGraphs
from triolet.runner.input_batch import StepArrays, build_input_batch
from triolet.runner.kv_layout import KVLayout
from triolet.runner.kv_tensors import KVTensors
from triolet.runner.sampler import PendingSample, Sampler, draw, is_plain, sampling_arrays
from triolet.runner.sequence_table import SequenceTable
from triolet_kernels.ops import Ops, SamplingBatch

STEPS_IN_FLIGHT = 2
"""One computes, the other is packed and queued behind it. A third would hide nothing more."""

_PROFILE_BLOCKS = 8
"""KV blocks of the step that measures memory: its sequences write over each other."""


class DeviceSteps:
    """Steps on a device with a queue.

    Args:
        queue: The device.
        device: Where tensors live.
        max_num_seqs: Sequences in one step.
    """

    def __init__(self, queue: DeviceQueue, device: torch.device, max_num_seqs: int) -> None:
        self._queue = queue
        self.sampled = torch.zeros(max_num_seqs, dtype=torch.int64, device=device)
        self._graphs: DecodeGraphs | None = None

    def capture(
        self,
        model: CausalLM,
        ops: Ops,
        kv: KVTensors,
        progress: Callable[[str], None],
        *,
        vocab_size: int,
        num_blocks: int,
        block_size: int,
        max_model_len: int,
    ) -> None:
        """Capture the decode step; see `DecodeGraphs`. The cache has one block more."""
        graphs = DecodeGraphs(
            model,
            ops,
            kv,
            self._queue,
            self.sampled,
            vocab_size=vocab_size,
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=max_model_len,
        )
        graphs.capture(progress)
        self._graphs = graphs

    def can_replay(self, step: StepArrays, scheduled: Sequence[ScheduledSequence]) -> bool:
        """Whether a captured step computes all that is asked for."""
        return (
            self._graphs is not None
            and self._graphs.fits(len(step.sequences))
            and all(
                row.num_new_tokens == 1
                and row.samples
                and sequence.failure is None
                and sequence.state.sampling.prompt_logprobs is None
                for sequence, row in zip(step.sequences, scheduled, strict=True)
            )
        )

    def replay(self, step: StepArrays, table: SequenceTable, sampler: Sampler) -> PendingSample:
        """Queue a captured step. Tokens that need more than a draw are drawn once more."""
        assert self._graphs is not None
        is_whole = all(map(is_plain, step.sequences))
        before = None if is_whole else self.sampled.clone()  # the captured step writes to it
        output = self._graphs.run(step, sampling_arrays(step.sequences, table))
        if is_whole:
            return PendingSample(step.sequences, output.tokens, output.chosen, {}, [], None)
        sample = sampler.launch(output.logits, step.sequences, table, before)
        # The captured draw has cleared rows that are no numbers: what it says of them counts.
        unsound = torch.isnan(output.chosen)
        return dataclasses.replace(sample, chosen=sample.chosen.masked_fill(unsound, math.nan))

    def send(self, sample: PendingSample, table: SequenceTable) -> PendingSample:
        """Keep the tokens on the device for the next step, and queue their copy to the host."""
        self.sampled[: len(sample.tokens)].copy_(sample.tokens)
        for row, sequence in enumerate(sample.sequences):
            table.expect_token(sequence, row)
        return sample.map(self._queue.to_host)

    def record(self) -> Event:
        """The end of what was queued so far."""
        return self._queue.record()

    def close(self) -> None:
        """Drop graphs and what torch keeps of freed memory."""
        if self._graphs is not None:
            self._graphs.close()
            self._graphs = None
        self._queue.close()


def memory_for_cache(
    queue: DeviceQueue, config: EngineConfig, largest_step: Callable[[], object]
) -> int:
    """Bytes that the KV cache may take: what `gpu_memory_utilization` leaves.

    Args:
        queue: The device; the weights are on it.
        config: The engine's configuration.
        largest_step: Computes the step that needs the most memory.

    Returns:
        At least 0.
    """
    step_bytes = queue.measure_peak(largest_step)
    memory = queue.memory()
    held = memory.total - memory.free  # weights, and what other programs hold
    budget = int(memory.total * config.cache.gpu_memory_utilization) - held - step_bytes
    return max(0, min(budget, memory.free - step_bytes))


def blocks_for_cache(
    config: EngineConfig, num_groups: int, block_bytes: int, budget_bytes: int
) -> int:
    """Blocks in the budget: those asked for, or all there is room for.

    Raises:
        ConfigError: More is asked for than there is room for.
    """
    everything = attrs.evolve(config.cache, kv_cache_fraction=1.0)
    return kv_tensors.blocks_in_budget(everything, num_groups, block_bytes, budget_bytes)


def compute_largest_step(
    model: CausalLM, ops: Ops, layout: KVLayout, config: EngineConfig, max_model_len: int
) -> None:
    """A step of as many tokens and sequences as there can be, sampled with all there is."""
    block_size = config.cache.block_size
    num_sequences = config.scheduler.max_num_seqs
    length = min(max_model_len, config.scheduler.max_num_batched_tokens // num_sequences)
    kv = kv_tensors.allocate(layout, model.attention, ops, _PROFILE_BLOCKS, block_size)
    positions = np.tile(np.arange(length), num_sequences)
    num_groups = len(layout.groups)
    width = -(-length // block_size)
    blocks = np.tile(np.arange(width, dtype=np.int32) % _PROFILE_BLOCKS, (num_sequences, 1))
    step = StepArrays(
        sequences=[],
        token_ids=np.zeros_like(positions),
        positions=positions,
        sources=np.full(num_sequences, -1),
        query_starts=np.arange(num_sequences + 1) * length,
        context_lens=np.full(num_sequences, length),
        slots=[positions % (_PROFILE_BLOCKS * block_size)] * num_groups,
        block_tables=[blocks] * num_groups,
        max_query_len=length,
    )
    packed = build_input_batch(step, ops.device)
    hidden = model.forward(packed.token_ids, kv.layers(packed.attention))
    logits = model.logits(hidden[torch.from_numpy(packed.last_rows).to(ops.device)])

    def full(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((num_sequences,), value, dtype=dtype, device=ops.device)

    top_k = full(min(50, model.vocab_size), torch.int32)
    batch = SamplingBatch(
        full(1.0), top_k, full(0.9), full(0.0), full(0.5, torch.float64), all_greedy=False
    )
    tokens, _ = draw(ops, logits.clone(), batch)
    ops.top_logprobs(logits, tokens, min(config.limits.max_logprobs, model.vocab_size))
