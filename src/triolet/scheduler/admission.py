"""What can never run is refused before it is admitted."""

from __future__ import annotations

from triolet.errors import InvalidRequest, PromptTooLong
from triolet.sampling_params import SamplingParams


def check_fits(
    num_prompt_tokens: int,
    sampling: SamplingParams,
    num_prefix_tokens: int,
    max_model_len: int,
) -> None:
    """Refuse a request that could wait for ever.

    `max_tokens` is a ceiling: what the context does not leave is not refused, the output
    ends with "length". Of n outputs each must fit alone: where they do not fit together
    they run one after the other.

    Args:
        num_prompt_tokens: Length of the prompt.
        sampling: Its sampling parameters.
        num_prefix_tokens: Tokens of output already emitted elsewhere.
        max_model_len: Longest context, as the model and the KV cache allow it.

    Raises:
        PromptTooLong: No token of output could follow.
        InvalidRequest: There is no prompt, or the parameters exclude each other.
    """
    if num_prompt_tokens < 1:
        raise InvalidRequest("the prompt has no tokens; at least one is needed", param="prompt")
    if num_prompt_tokens >= max_model_len:
        raise PromptTooLong(
            f"the prompt has {num_prompt_tokens} tokens; this model takes at most "
            f"{max_model_len} tokens, of which at least one must be left for the output",
            param="prompt",
        )
    if num_prompt_tokens + num_prefix_tokens > max_model_len:
        raise PromptTooLong(
            f"the prompt has {num_prompt_tokens} tokens and the output so far "
            f"{num_prefix_tokens}; this model takes at most {max_model_len} tokens",
            param="prefix",
        )
    if sampling.beam_width is not None:
        _check_beam_search(sampling, num_prefix_tokens)


def _check_beam_search(sampling: SamplingParams, num_prefix_tokens: int) -> None:
    """Refuse what beam search, which ranks raw log-probabilities, would ignore."""
    excluded = {
        "prefix": num_prefix_tokens > 0,
        "structured_outputs": sampling.structured_outputs is not None,
        "logits_processors": bool(sampling.logits_processors),
        "logit_bias": bool(sampling.logit_bias),
        "bad_words": bool(sampling.bad_words),
        "allowed_token_ids": sampling.allowed_token_ids is not None,
        "presence_penalty": sampling.presence_penalty != 0,
        "frequency_penalty": sampling.frequency_penalty != 0,
        "repetition_penalty": sampling.repetition_penalty != 1,
    }
    for param, is_given in excluded.items():
        if is_given:
            raise InvalidRequest(
                f"{param} cannot be used with beam_width: beam search ranks the raw "
                "log-probabilities of the model",
                param=param,
            )
