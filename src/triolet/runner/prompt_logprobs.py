"""Log-probabilities of prompt tokens, from the hidden states of a prefill chunk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from triolet.errors import RequestFailed
from triolet.messages.runner_to_scheduler import PromptLogprobs
from triolet.messages.scheduler_to_runner import ScheduledSequence
from triolet.models.causal_lm import CausalLM
from triolet.output import TokenLogprobs
from triolet.runner.input_batch import InputBatch, to_device
from triolet.runner.sampler import mask_padding, token_logprobs, zero_unsound_rows
from triolet.runner.sequence_table import SequenceTable
from triolet_kernels.ops import Ops

LOGITS_BYTES_MAX = 64 << 20
"""Logits held at a time: those of a whole prompt would be a gigabyte for 1k tokens and a
vocabulary of 262k."""


def score_prompts(
    hidden: Tensor,
    batch: InputBatch,
    scheduled: Sequence[ScheduledSequence],
    table: SequenceTable,
    model: CausalLM,
    ops: Ops,
    vocab_size: int,
) -> list[PromptLogprobs]:
    """Score the prompt tokens that follow a row of this step.

    Args:
        hidden: [T, H] of the step.
        batch: The step.
        scheduled: Its sequences, in the order of the batch.
        table: Their tokens.
        model: For the logits.
        ops: For the log-probabilities.
        vocab_size: Ids below this are tokens.

    Returns:
        One entry per sequence that asked for them and has such rows. Nothing is kept, so a
        prompt that is computed again is scored again. A sequence whose logits are not numbers
        has its `failure` set instead.
    """
    scores: list[PromptLogprobs] = []
    first_row = 0
    for sequence, step in zip(batch.sequences, scheduled, strict=True):
        count = sequence.state.sampling.prompt_logprobs
        start = step.num_computed_tokens + 1
        end = min(start + step.num_new_tokens, sequence.state.num_prompt_tokens)
        if count is not None and sequence.failure is None and start < end:
            rows = hidden[first_row : first_row + end - start]
            tokens = table.tokens[sequence.row, start:end].astype(np.int64)
            try:
                entries = _score(rows, tokens, min(count, vocab_size), model, ops, vocab_size)
            except RequestFailed as error:
                sequence.failure = error
            else:
                scores.append(PromptLogprobs(step.sequence_id, start, entries))
        first_row += step.num_new_tokens
    return scores


def _score(
    hidden: Tensor,
    tokens: NDArray[np.int64],
    count: int,
    model: CausalLM,
    ops: Ops,
    vocab_size: int,
) -> list[TokenLogprobs]:
    """Score tokens [N], each from the row of hidden states [N, H] before it.

    Raises:
        RequestFailed: The logits are not numbers.
    """
    size = max(1, LOGITS_BYTES_MAX // (4 * model.vocab_size))
    entries: list[TokenLogprobs] = []
    for start in range(0, len(tokens), size):
        targets = tokens[start : start + size]
        logits = model.logits(hidden[start : start + size])
        mask_padding(logits, vocab_size)
        if bool(zero_unsound_rows(logits).any()):
            raise RequestFailed("the model's logits are not numbers")
        top = ops.top_logprobs(logits, to_device(targets, ops.device), count)
        entries += token_logprobs(targets.tolist(), top, [count] * len(targets))
    return entries
