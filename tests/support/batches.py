"""Hand-made batches for tests of what executes them."""

from triolet.messages.scheduler_to_runner import (
    ScheduledBatch,
    ScheduledSequence,
    SequenceState,
)
from triolet.request import SequenceId
from triolet.sampling_params import SamplingParams

PROMPT = [40, 41, 42]


def make_batch(incarnation: int, step: int) -> ScheduledBatch:
    """One sequence, prefilled whole and sampled."""
    name = SequenceId(step)
    state = SequenceState(name, PROMPT, 3, SamplingParams(seed=1, temperature=0.0), 0, ())
    scheduled = ScheduledSequence(name, 0, 3, ([step],), True)
    return ScheduledBatch(incarnation, step, [state], [scheduled], [])
