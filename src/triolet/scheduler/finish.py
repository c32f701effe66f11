"""When tokens end an output: EOS, a stop token id, or length.

Stop strings are found in text, by the dispatcher, and come back as `StopMatched`.
"""

from __future__ import annotations

import attrs

from triolet.request import FinishReason
from triolet.sampling_params import SamplingParams


@attrs.frozen
class Finish:
    """How tokens ended an output.

    Attributes:
        reason: STOP or LENGTH.
        stop_reason: The stop token id that matched; None for EOS and length.
        drop_stop_token: Whether the last token is left out of the text.
    """

    reason: FinishReason
    stop_reason: int | None = None
    drop_stop_token: bool = False


_LENGTH = Finish(FinishReason.LENGTH)


@attrs.frozen
class FinishRule:
    """Ends the outputs of one request.

    Attributes:
        eos_token_ids: EOS of the model; empty with `ignore_eos`.
        stop_token_ids: Ids the request named.
        min_tokens: A stop must have this many tokens before it.
        num_tokens_max: Longest sequence, prompt included.
        drop_stop_token: Whether a stop is left out of the text.
    """

    eos_token_ids: frozenset[int]
    stop_token_ids: frozenset[int]
    min_tokens: int
    num_tokens_max: int
    drop_stop_token: bool

    @classmethod
    def of(
        cls,
        sampling: SamplingParams,
        eos_token_ids: tuple[int, ...],
        num_prompt_tokens: int,
        max_model_len: int,
    ) -> FinishRule:
        """The rule for a request with this prompt on this model."""
        longest = max_model_len
        if sampling.max_tokens is not None:
            longest = min(longest, num_prompt_tokens + sampling.max_tokens)
        return cls(
            frozenset(() if sampling.ignore_eos else eos_token_ids),
            frozenset(sampling.stop_token_ids),
            sampling.min_tokens,
            longest,
            not sampling.include_stop_str_in_output,
        )

    def is_stop(self, token: int) -> bool:
        """Whether this token can end an output."""
        return token in self.eos_token_ids or token in self.stop_token_ids

    def check(self, token: int, num_output_tokens: int, num_tokens: int) -> Finish | None:
        """Whether an output ends with its newest token, and how.

        Args:
            token: The newest token.
            num_output_tokens: Tokens of the output, it included.
            num_tokens: Tokens of the sequence, prompt and it included.
        """
        if num_output_tokens > self.min_tokens:
            if token in self.eos_token_ids:
                return Finish(FinishReason.STOP, None, self.drop_stop_token)
            if token in self.stop_token_ids:
                return Finish(FinishReason.STOP, token, self.drop_stop_token)
        return _LENGTH if num_tokens >= self.num_tokens_max else None
