"""A Sampler on the reference kernels, and sequences for its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from triolet.messages.scheduler_to_runner import SequenceState
from triolet.request import SequenceId
from triolet.runner.logits_processors import LogitsProcessor
from triolet.runner.sampler import Sampler
from triolet.runner.sequence_table import RunningSequence, SequenceTable
from triolet.sampling_params import SamplingParams
from triolet_kernels import select_ops
from triolet_kernels.ops import Ops

VOCAB = 24


def reference_ops() -> Ops:
    """Plain torch on one thread."""
    return select_ops(torch.device("cpu"), torch.float32, kernels="reference", threads=1)


def sampler(
    processors: Mapping[str, LogitsProcessor] | None = None,
    vocab_size: int = VOCAB,
    ops: Ops | None = None,
) -> Sampler:
    """A sampler of a small vocabulary."""
    return Sampler(ops or reference_ops(), vocab_size, processors or {})


def sequences_of(
    table: SequenceTable,
    parameters: Sequence[SamplingParams],
    prompt: Sequence[int],
    output: Sequence[int] = (),
) -> list[RunningSequence]:
    """One sequence per entry of `parameters`, all with the same tokens; 0 is EOS."""
    return [
        table.add(SequenceState(SequenceId(i), [*prompt, *output], len(prompt), sampling, 0, (0,)))
        for i, sampling in enumerate(parameters)
    ]
