"""The first batches a runner computes, for nobody."""

from __future__ import annotations

from triolet.config import EngineConfig
from triolet.messages.scheduler_to_runner import ScheduledBatch, ScheduledSequence, SequenceState
from triolet.request import SequenceId
from triolet.runner.kv_layout import KVPlan
from triolet.sampling_params import SamplingParams

PREFILL_TOKENS_MAX = 32
"""Enough to take the prefill path of every kernel."""

_NOBODY = SequenceId(-1)


def warm_up_batches(plan: KVPlan, num_groups: int, config: EngineConfig) -> list[ScheduledBatch]:
    """A prefill, a decode where the context has room for one, and the order to forget both.

    They write to blocks that no sequence holds yet. Sampling is on with everything that is
    lazy in it; the numbers that come out mean nothing.
    """
    room = min(plan.max_model_len, config.scheduler.max_num_batched_tokens, PREFILL_TOKENS_MAX + 1)
    num_tokens = max(1, room - 1)
    state = SequenceState(
        sequence_id=_NOBODY,
        token_ids=[0] * num_tokens,
        num_prompt_tokens=num_tokens,
        sampling=SamplingParams(temperature=1.0, top_p=0.9, top_k=50, seed=0, logprobs=1),
        sample_index=0,
        eos_token_ids=(),
    )
    # Blocks may be shared by groups here, and by tokens where the pool is tiny.
    num_blocks = -(-(num_tokens + 1) // config.cache.block_size)
    blocks = [block % plan.num_blocks for block in range(num_blocks)]
    prefill = ScheduledSequence(
        sequence_id=_NOBODY,
        num_computed_tokens=0,
        num_new_tokens=num_tokens,
        new_block_ids=tuple(list(blocks) for _ in range(num_groups)),
        samples=True,
    )
    batches = [ScheduledBatch(0, 0, [state], [prefill], [])]
    if plan.max_model_len > num_tokens:
        decode = ScheduledSequence(
            sequence_id=_NOBODY,
            num_computed_tokens=num_tokens,
            num_new_tokens=1,
            new_block_ids=tuple([] for _ in range(num_groups)),
            samples=True,
        )
        batches.append(ScheduledBatch(0, 1, [], [decode], []))
    return [*batches, ScheduledBatch(0, 2, [], [], [_NOBODY])]
