"""Scheduler to dispatcher. Bound: what one step says, and the dispatcher takes all each time."""

from __future__ import annotations

import attrs

from triolet.output import TokenLogprobs
from triolet.request import FinishReason, RequestId


@attrs.frozen
class RequestStarted:
    """A request has its first place in a step."""

    request_id: RequestId
    cached_tokens: int


@attrs.frozen
class TokensSampled:
    """New tokens of one output of a request."""

    request_id: RequestId
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None


@attrs.frozen
class PromptScored:
    """Log-probabilities of the whole prompt; the first position has none."""

    request_id: RequestId
    logprobs: tuple[TokenLogprobs | None, ...]


@attrs.frozen
class RequestFinished:
    """One output of a request ended in tokens: EOS, stop id, length, or a sibling won.

    Attributes:
        request_id: The request.
        index: The output.
        reason: Why.
        stop_reason: The stop token id, if one matched; None for EOS.
        num_output_tokens: Position of the end: tokens of this output, all sent before.
        drop_stop_token: Whether the last token (EOS or a stop id) is left out of the text.
    """

    request_id: RequestId
    index: int
    reason: FinishReason
    stop_reason: int | None
    num_output_tokens: int
    drop_stop_token: bool = False


@attrs.frozen
class RequestErrored:
    """The whole request failed; `code` is that of an error in `errors.py`."""

    request_id: RequestId
    code: str
    message: str


SchedulerFact = RequestStarted | TokensSampled | PromptScored | RequestFinished | RequestErrored


@attrs.frozen
class StepFacts:
    """Everything one turn of the scheduler has to say, in order."""

    facts: list[SchedulerFact]
