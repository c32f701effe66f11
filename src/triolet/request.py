"""What one request is, everywhere."""

from __future__ import annotations

import enum
from typing import NewType

import attrs

from triolet.sampling_params import SamplingParams

RequestId = NewType("RequestId", str)
"""The engine's own unique name of a request. A name chosen by a client is only a `label`."""

SequenceId = NewType("SequenceId", int)
"""The scheduler's name of one sequence: a request with n=4 has one id and four sequences."""


class FinishReason(enum.StrEnum):
    """Why one sequence of a request ended."""

    STOP = "stop"
    """EOS, a stop token id or a stop string."""
    LENGTH = "length"
    """`max_tokens` or the model's context is used up."""
    TIMEOUT = "timeout"
    """A deadline passed after the first token; "length" on the wire."""
    CANCELLED = "cancelled"
    """A sibling won (`keep`), or the engine was asked to cancel it."""


@attrs.frozen
class Timeouts:
    """How long a request may take, in seconds from its arrival; None is no limit.

    Attributes:
        total: Until the last token.
        queue: Until the scheduler first gives it a place in a step.
        first_token: Until its first token.
    """

    total: float | None = None
    queue: float | None = None
    first_token: float | None = None


@attrs.frozen
class GenerationRequest:
    """One validated, tokenized request, ready to be scheduled.

    Attributes:
        request_id: The engine's own id.
        prompt_token_ids: Ids of the prompt, each within the vocabulary.
        sampling: How to sample, validated and with defaults resolved; `seed` is always set.
        arrival_time: Seconds on trio's clock.
        priority: Lower is served first (policy "priority").
        prefix: Tokens of output number 0 that were already emitted elsewhere: generation
            goes on after them, and penalties, stops and budgets count them (resume).
        cache_salt: Requests share cached prefix blocks only with requests of the same salt.
        tenant: Whose limits it counts against.
        label: The client's own name for it, for logs only.
        timeouts: Limits of time.
    """

    request_id: RequestId
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival_time: float
    priority: int = 0
    prefix: tuple[int, ...] = ()
    cache_salt: str | None = None
    tenant: str | None = None
    label: str | None = None
    timeouts: Timeouts = Timeouts()

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt, without `prefix`."""
        return len(self.prompt_token_ids)
