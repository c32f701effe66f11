"""Runner to scheduler. Bound: steps in flight, one RunnerReady and one RunnerFailed."""

from __future__ import annotations

import attrs

from triolet.output import TokenLogprobs
from triolet.request import SequenceId


@attrs.frozen
class KVGroup:
    """Layers that share a block table.

    Attributes:
        num_layers: Layers in the group. All groups of a model have the same number, so a
            block of any group has the same size and one pool serves them all.
        window: Tokens of context these layers attend to, the current one included; None
            is all of it.
    """

    num_layers: int
    window: int | None


@attrs.frozen
class RunnerInfo:
    """What a loaded runner is.

    Attributes:
        num_blocks: Blocks in its KV cache.
        block_size: Tokens per block.
        groups: Its KV groups.
        block_bytes: Bytes of one block.
        max_model_len: Longest context it can run.
        vocab_size: Ids below this may be sampled (padding rows of the head are not counted).
        steps_in_flight: Batches it can hold at once.
        batch_invariant: Whether a row's result does not depend on the rest of its batch.
        device: Such as "cpu" or "cuda:0".
        dtype: Such as "bfloat16".
        threads: Compute threads.
        description: One line for people: model class, kernels, memory.
    """

    num_blocks: int
    block_size: int
    groups: tuple[KVGroup, ...]
    block_bytes: int
    max_model_len: int
    vocab_size: int
    steps_in_flight: int = 1
    batch_invariant: bool = False
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    description: str = ""


@attrs.frozen
class RunnerReady:
    """The runner has loaded its model and waits for batches."""

    incarnation: int
    info: RunnerInfo


@attrs.frozen
class RowError:
    """One sequence failed in a step; the others are fine."""

    sequence_id: SequenceId
    code: str
    message: str


@attrs.frozen
class PromptLogprobs:
    """Log-probabilities of prompt tokens `start`, `start + 1`, ...; the first is position 1."""

    sequence_id: SequenceId
    start: int
    logprobs: list[TokenLogprobs]


@attrs.frozen
class BatchResult:
    """What one step produced.

    Attributes:
        incarnation: Which life of the runner computed it.
        step: Number of the step.
        sequence_ids: Sequences that sampled, in batch order.
        token_ids: Their new tokens.
        logprobs: Entry i belongs to `sequence_ids[i]`; None where none were asked for.
        prompt_logprobs: For sequences that asked for them.
        errors: Sequences that failed alone.
        elapsed_s: Seconds the step took in the runner.
    """

    incarnation: int
    step: int
    sequence_ids: list[SequenceId]
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] = attrs.field(factory=list[TokenLogprobs | None])
    prompt_logprobs: list[PromptLogprobs] = attrs.field(factory=list[PromptLogprobs])
    errors: list[RowError] = attrs.field(factory=list[RowError])
    elapsed_s: float = 0.0


@attrs.frozen
class RunnerFailed:
    """The runner of this incarnation is gone: it crashed, hung or answered nonsense."""

    incarnation: int
    message: str
    kind: str = "crash"
