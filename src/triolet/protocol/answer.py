"""What a request's outputs become, piece by piece: the shape all answers share.

The server feeds an answer from the engine's sink and never looks inside; a stream's pieces
are events, a whole answer's pieces are empty until `finish` returns the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from triolet.output import OutputDelta, TokenLogprobs, Usage


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every chunk of one answer repeats.

    Attributes:
        id: Such as "chatcmpl-1f2e...": one per HTTP request.
        created: Unix time in seconds when the request was accepted.
        model: Name of the model as the client may call it.
    """

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True)
class AcceptedPrompt:
    """A prompt as the engine took it.

    Attributes:
        token_ids: Its ids.
        text: Its text, where it is to be echoed.
        pieces: The text that each token completes, where the echo has logprobs.
    """

    token_ids: tuple[int, ...]
    text: str = ""
    pieces: tuple[str, ...] = ()


class Answer(Protocol):
    """Outputs of the engine to bytes of one HTTP answer. Every method is synchronous."""

    def start(self, prompt_index: int, prompt: AcceptedPrompt) -> bytes:
        """The prompt was admitted; comes before anything else of it."""
        ...

    def score_prompt(self, prompt_index: int, logprobs: Sequence[TokenLogprobs | None]) -> bytes:
        """Log-probabilities of the prompt, if they were asked for."""
        ...

    def put(self, prompt_index: int, delta: OutputDelta) -> bytes:
        """More of one output of one prompt."""
        ...

    def finish(self, usages: Sequence[Usage]) -> bytes:
        """Everything has ended; `usages` has one entry per prompt."""
        ...


class UsageSoFar:
    """Counts tokens for `continuous_usage_stats`."""

    def __init__(self) -> None:
        self._prompt = 0
        self._completion = 0

    def add_prompt(self, num_tokens: int) -> None:
        """One more prompt was admitted."""
        self._prompt += num_tokens

    def add(self, delta: OutputDelta) -> None:
        """A delta was delivered."""
        self._completion += len(delta.token_ids)

    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(prompt_tokens=self._prompt, completion_tokens=self._completion)
