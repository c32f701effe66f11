"""What a caller receives, and the seam through which it is delivered."""

from __future__ import annotations

from typing import Protocol

import attrs

from triolet.request import FinishReason

LOGPROB_FLOOR = -9999.0
"""Written in place of -inf: JSON has no infinities (as OpenAI and vLLM do)."""


@attrs.frozen
class TokenLogprobs:
    """Log-probabilities (natural, of the raw logits) at one position.

    Attributes:
        token_id: The token that stands at the position.
        logprob: Its log-probability, at least `LOGPROB_FLOOR`.
        rank: Its rank in the vocabulary, 1 is the most likely.
        top: (token id, log-probability) of the most likely tokens, best first; the token
            itself is not added here, it is `token_id`.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@attrs.frozen
class OutputDelta:
    """The next piece of one output of a request. Text, ids and logprobs travel together.

    Attributes:
        index: Which of the n outputs.
        text: The text these tokens complete. May be empty: a token can end in mid-character.
        token_ids: The tokens released by this delta.
        logprobs: One entry per token of `token_ids`, if logprobs were asked for.
        finish_reason: Set on the last delta of this output.
        stop_reason: The stop string or stop token id that matched; None for EOS.
        token_texts: One piece of `text` per token, present with `logprobs`; joined they are
            the text of the tokens before any stop string was cut off.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    token_texts: tuple[str, ...] | None = None


@attrs.frozen
class Usage:
    """Tokens a request used.

    Attributes:
        prompt_tokens: Tokens of the prompt, counted once whatever n is.
        completion_tokens: Tokens generated, summed over all outputs.
        cached_tokens: Prompt tokens whose KV was found in the prefix cache.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class Sink(Protocol):
    """Where the dispatcher puts the outputs of one request.

    Every method is synchronous, cheap and never blocks. An exception raised by one fails
    this request only. After `finish` or `fail` nothing more is delivered.
    """

    def start(self, cached_tokens: int) -> None:
        """The request got its first place in a step."""
        ...

    def put(self, delta: OutputDelta) -> None:
        """The next piece of one of its outputs."""
        ...

    def score_prompt(self, logprobs: tuple[TokenLogprobs | None, ...]) -> None:
        """Log-probabilities of the whole prompt; the first position has none."""
        ...

    def finish(self, usage: Usage) -> None:
        """Every output has ended."""
        ...

    def fail(self, error: Exception) -> None:
        """The request failed; `error` is what its consumer should see."""
        ...
