"""What a request comes to when it is alone: a plain loop over a scheduler and a fake runner.

The oracle for outputs that no formula gives, such as those of a beam search: whatever else is
going on, and whatever goes wrong, they must be what they are in this loop.
"""

from __future__ import annotations

import attrs

from triolet.config import EngineConfig
from triolet.messages.scheduler_to_dispatcher import RequestFinished, TokensSampled
from triolet.request import FinishReason, GenerationRequest, RequestId
from triolet.sampling_params import SamplingParams
from triolet.scheduler.scheduler import Scheduler
from triolet.testing.fake_runner import FakeRunner, fake_facts

NUM_BLOCKS = 512
"""Enough for any request of a simulation."""


@attrs.define
class SoloOutput:
    """One output: its tokens, and how it ended."""

    token_ids: list[int] = attrs.field(factory=list[int])
    finish_reason: FinishReason | None = None


def run_alone(
    prompt: tuple[int, ...], sampling: SamplingParams, *, max_model_len: int, eos_one_in: int
) -> dict[int, SoloOutput]:
    """Run one request with nothing beside it, to its end.

    Args:
        prompt: Token ids.
        sampling: With `seed` and `max_tokens` set, and no stop strings: no text is made here.
        max_model_len: Longest context.
        eos_one_in: See `FakeRunner`.

    Returns:
        Its outputs by index.
    """
    facts = fake_facts(max_model_len)
    config = EngineConfig.of("fake", max_model_len=max_model_len)
    runner = FakeRunner(config, facts, num_blocks=NUM_BLOCKS, eos_one_in=eos_one_in)
    info = runner.load(lambda text: None)
    scheduler = Scheduler(
        config.scheduler,
        config.cache,
        info,
        eos_token_ids=facts.eos_token_ids,
        model_key="solo",
        secret=b"",
    )
    scheduler.runner_restored(info, 1)
    scheduler.add(GenerationRequest(RequestId("solo"), prompt, sampling, 0.0), 0.0)
    outputs: dict[int, SoloOutput] = {}
    while (batch := scheduler.schedule(0.0)) is not None:
        runner.launch(batch)
        for fact in scheduler.update(runner.collect(), 0.0):
            if isinstance(fact, TokensSampled):
                outputs.setdefault(fact.index, SoloOutput()).token_ids += fact.token_ids
            elif isinstance(fact, RequestFinished):
                outputs.setdefault(fact.index, SoloOutput()).finish_reason = fact.reason
    return outputs
