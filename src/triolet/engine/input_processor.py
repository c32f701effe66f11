"""Text, chat messages or token ids -> a validated request; everything slow off the run loop.

Whatever a caller can get wrong that needs the model to be known is found here, before the
request is admitted, so that nothing invalid ever reaches the scheduler (G5).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import attrs

from triolet.config import EngineConfig
from triolet.engine.client import Prompt, PromptOptions
from triolet.engine.offload import Offload
from triolet.errors import InvalidRequest, PromptTooLong
from triolet.messages.runner_to_scheduler import RunnerInfo
from triolet.model_source.facts import ModelFacts
from triolet.request import Timeouts
from triolet.sampling_params import SEED_MAX, SamplingParams
from triolet.tokenizer.tokenizer import Message, Tokenizer

CHARS_PER_TOKEN_MAX = 128
"""No vocabulary has many tokens longer than this; a text longer than this times the context
cannot fit, and is refused before it is tokenized."""

COUNTED_VALUES_MAX = 65_536
"""Values of a chat that are looked at for its size, in 10 ms. There are more only in arguments of
tool calls; then the prompt is found to be too long after it was tokenized."""

PRIORITY_MAX = 2**31 - 1
"""A step of priority is worth seconds of waiting: this is for ever."""

CHARS_PER_TOKEN_GUESS = 4
"""English text; the reservation is corrected once the real number is known."""


def check_arguments(
    prompt: object,
    sampling: object,
    timeouts: object,
    deadline: object,
    priority: object,
    prefix: object,
    names: Mapping[str, object],
) -> None:
    """Refuse arguments of another type than `Engine.generate` declares, by name.

    Raises:
        InvalidRequest: `param` names the first.
    """

    def require(condition: bool, param: str, wanted: str, got: object) -> None:
        if not condition:
            raise InvalidRequest(f"{param} must be {wanted}, got {type(got).__name__}", param=param)

    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray))
    require(is_list, "prompt", "a text, token ids or chat messages", prompt)
    require(
        sampling is None or isinstance(sampling, SamplingParams),
        "sampling",
        "SamplingParams",
        sampling,
    )
    require(timeouts is None or isinstance(timeouts, Timeouts), "timeouts", "Timeouts", timeouts)
    number = isinstance(deadline, (int, float)) and not isinstance(deadline, bool)
    require(deadline is None or number, "deadline", "a number of seconds", deadline)
    require(type(priority) is int, "priority", "an integer", priority)
    if isinstance(priority, int) and abs(priority) > PRIORITY_MAX:
        raise InvalidRequest(
            f"priority must be between -{PRIORITY_MAX} and {PRIORITY_MAX}", param="priority"
        )
    is_list = isinstance(prefix, Sequence) and not isinstance(prefix, (str, bytes, bytearray))
    require(is_list, "prefix", "token ids", prefix)
    for name, value in names.items():
        require(value is None or isinstance(value, str), name, "a string", value)
        if isinstance(value, str) and not _is_text(value):
            raise InvalidRequest(f"{name} holds a lone surrogate: it is no text", param=name)


def _is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8: JSON and Python can hold half a character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _all_text(value: object) -> bool:
    """Whether every string in a value of plain data is text."""
    if isinstance(value, str):
        return _is_text(value)
    if isinstance(value, Mapping):
        return all(_all_text(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_all_text(item) for item in value)
    return True


class InputProcessor:
    """Turns what a caller gives into token ids and parameters that the engine can run.

    Args:
        config: Limits and defaults.
        facts: The model.
        tokenizer: Its tokenizer.
        offload: Where tokenizing happens.
        rng: Draws the seed of requests that bring none.
    """

    def __init__(
        self,
        config: EngineConfig,
        facts: ModelFacts,
        tokenizer: Tokenizer,
        offload: Offload,
        rng: random.Random,
    ) -> None:
        self._config = config
        self._facts = facts
        self._tokenizer = tokenizer
        self._offload = offload
        self._rng = rng

    def estimate_tokens(self, prompt: Prompt) -> int:
        """About how many tokens a prompt has, at no cost."""
        if isinstance(prompt, str):
            return max(1, len(prompt) // CHARS_PER_TOKEN_GUESS)
        if _is_token_ids(prompt):
            return len(prompt)
        return max(1, _count_chars(cast("Sequence[Message]", prompt)) // CHARS_PER_TOKEN_GUESS)

    async def tokenize(
        self,
        prompt: Prompt,
        info: RunnerInfo,
        options: PromptOptions,
        *,
        on_abandoned: Callable[[], None] | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a prompt. A checkpoint, unless it is ids already.

        Raises:
            InvalidRequest: It is empty, far too long, or the template refuses it.
        """
        if isinstance(prompt, str):
            if not _is_text(prompt):
                raise InvalidRequest("prompt holds a lone surrogate: it is no text", param="prompt")
        else:
            if len(prompt) == 0:
                raise InvalidRequest("prompt must not be empty", param="prompt")
            if _is_token_ids(prompt):
                token_ids = tuple(cast("Sequence[int]", prompt))
                return options.truncated(token_ids, info.max_model_len)
            _check_messages(prompt)
        chars = (
            len(prompt)
            if isinstance(prompt, str)
            else _count_chars(cast("Sequence[Message]", prompt))
        )
        limit = self._config.limits.max_prompt_chars or info.max_model_len * CHARS_PER_TOKEN_MAX
        if chars > limit:
            raise PromptTooLong(
                f"the prompt has {chars} characters, more than can fit in this model's maximum "
                f"context length of {info.max_model_len} tokens (limit: {limit} characters)",
                param="prompt" if isinstance(prompt, str) else "messages",
            )
        encode = functools.partial(self._encode, prompt, options)
        token_ids = await self._offload.run(encode, on_abandoned=on_abandoned)
        return options.truncated(token_ids, info.max_model_len)

    def _encode(self, prompt: Prompt, options: PromptOptions) -> tuple[int, ...]:
        """In a worker thread."""
        encode = self._tokenizer.encode
        if isinstance(prompt, str):
            return tuple(encode(prompt, add_special_tokens=options.add_special_tokens))
        text = self._tokenizer.render(
            cast("Sequence[Message]", prompt),
            tools=options.tools,
            documents=options.documents,
            add_generation_prompt=options.add_generation_prompt,
            continue_final_message=options.continue_final_message,
            template_kwargs=options.template_kwargs,
        )
        # The template writes the special tokens itself.
        return tuple(encode(text, add_special_tokens=False))

    def default_sampling(self) -> SamplingParams:
        """What a request gets that says nothing about sampling."""
        return SamplingParams(**self._config.model.sampling_defaults(self._facts.generation))

    def tokenize_bad_words(self, sampling: SamplingParams) -> SamplingParams:
        """Add the token ids of `bad_words`: as they stand, and after a space.

        A word in the middle of a text is usually another token than at its beginning.
        Bounded by `BAD_WORDS_MAX` short words, so it is done on the spot.
        """
        if not sampling.bad_words:
            return sampling
        sequences = {
            tuple(self._tokenizer.encode(form, add_special_tokens=False))
            for word in sampling.bad_words
            for form in (word, " " + word)
        }
        return attrs.evolve(
            sampling,
            bad_word_token_ids=(*sampling.bad_word_token_ids, *sorted(sequences - {()})),
        )

    def resolve(
        self,
        prompt_token_ids: tuple[int, ...],
        sampling: SamplingParams | None,
        prefix: Sequence[int],
        info: RunnerInfo,
    ) -> SamplingParams:
        """Check a request against the model and fill in what it left open.

        Returns:
            The parameters with `seed` and `max_tokens` set; `max_tokens` is cut to what the
            context leaves, `top_k` to what the vocabulary holds.

        Raises:
            PromptTooLong: The prompt leaves no room for a token.
            InvalidRequest: A token id is outside the vocabulary, or a limit is passed.
        """
        sampling = sampling or self.default_sampling()
        if not prompt_token_ids:
            raise InvalidRequest("prompt must not be empty", param="prompt")
        self._check_limits(sampling)
        # The length first: it bounds the time that the ids take.
        room = info.max_model_len - len(prompt_token_ids)
        if room < 1:
            raise PromptTooLong(
                f"this model's maximum context length is {info.max_model_len} tokens, but the "
                f"prompt has {len(prompt_token_ids)}; shorten it to at most "
                f"{info.max_model_len - 1}",
                param="prompt",
            )
        self._check_ids(prompt_token_ids, "prompt")
        self._check_ids(prefix, "prefix")
        self._check_ids(sampling.stop_token_ids, "stop_token_ids")
        self._check_ids(sampling.allowed_token_ids or (), "allowed_token_ids")
        self._check_ids(tuple(sampling.logit_bias), "logit_bias")
        max_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        seed = self._rng.randrange(SEED_MAX) if sampling.seed is None else sampling.seed
        return attrs.evolve(
            sampling,
            seed=seed,
            max_tokens=max_tokens,
            min_tokens=min(sampling.min_tokens, max_tokens),
            # Any integer may ask for all tokens; the worker keeps it in 32 bits.
            top_k=min(sampling.top_k, self._facts.vocab_size),
        )

    def _check_limits(self, sampling: SamplingParams) -> None:
        highest = self._config.limits.max_logprobs
        for name in ("logprobs", "prompt_logprobs"):
            if (getattr(sampling, name) or 0) > highest:
                raise InvalidRequest(
                    f"{name} must be at most {highest} (max_logprobs), got "
                    f"{getattr(sampling, name)}",
                    param=name,
                )
        known = self._config.runner.logits_processors
        for name in sampling.logits_processors:
            if name not in known:
                raise InvalidRequest(
                    f"logits processor {name!r} is not registered with this engine; registered: "
                    f"{', '.join(sorted(known)) or 'none'}",
                    param="logits_processors",
                )

    def _check_ids(self, token_ids: Sequence[int], param: str) -> None:
        size = self._facts.vocab_size
        if _all_ints(token_ids) and (not token_ids or 0 <= min(token_ids) <= max(token_ids) < size):
            return
        for token_id in token_ids:
            if type(token_id) is not int:
                raise InvalidRequest(
                    f"{param} must hold token ids (integers), got {token_id!r}", param=param
                )
            if not 0 <= token_id < size:
                raise InvalidRequest(
                    f"{param} holds the token id {token_id}, outside this model's vocabulary of "
                    f"{size} tokens",
                    param=param,
                )


def _is_token_ids(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and len(prompt) > 0 and not isinstance(prompt[0], Mapping)


def _all_ints(values: Sequence[object]) -> bool:
    """Whether there are only integers, no booleans: 10 ns for each."""
    return set(map(type, values)) <= {int}


def _check_messages(messages: Sequence[object]) -> None:
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequest(
                f"messages[{i}] must be a mapping with a role and a content", param="messages"
            )
        if not _all_text(message):
            raise InvalidRequest(
                f"messages[{i}] holds a lone surrogate: it is no text", param="messages"
            )


def _count_chars(messages: Sequence[Message]) -> int:
    """Characters of all text in a chat; of one with too many values, of the first of them."""
    chars = 0
    values: list[object] = list(messages)
    for _ in range(COUNTED_VALUES_MAX):
        if not values:
            break
        value = values.pop()
        if isinstance(value, str):
            chars += len(value)
        elif isinstance(value, Mapping):
            values.extend(value.values())
        elif isinstance(value, (list, tuple)):
            values.extend(value)
        else:
            chars += 1
    return chars
