"""Fields that chat and completion requests share. Names are OpenAI's, then vLLM's.

None means that the field was not sent: the model's own default, then the protocol's, holds.
Ranges of sampling parameters are checked by `SamplingParams`, so that there is one rule for
Python and HTTP; a Range here is a rule of the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from triolet.protocol.fields import Range

DEADLINE_MS_MAX = 24 * 3600 * 1000
"""A request that may take longer than a day is a mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """`stream_options`: token counts in a stream.

    Attributes:
        include_usage: One more chunk at the end, with `choices` empty and the usage.
        continuous_usage_stats: The usage so far in every chunk; needs `include_usage`.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSchemaFormat:
    """`response_format.json_schema`."""

    name: str
    schema: Mapping[str, object] | bool
    description: str | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFormat:
    """`response_format`: text, any JSON object, or JSON that follows a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsField:
    """`structured_outputs` (vLLM's name): exactly one constraint on the text of the answer."""

    json: str | Mapping[str, object] | bool | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None
    disable_additional_properties: bool = False
    structural_tag: Mapping[str, object] | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFields:
    """What both kinds of request may say; the subclasses add the prompt."""

    model: str | None = None
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: Annotated[int, Range(low=0)] | None = None
    min_tokens: int = 0
    stop: str | tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[str, float] | None = None
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    prompt_logprobs: Annotated[int, Range(low=0)] | None = None
    use_beam_search: bool = False
    length_penalty: float | None = None
    truncate_prompt_tokens: Annotated[int, Range(low=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsField | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    echo: bool = False
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    priority: Annotated[int, Range(-(2**31), 2**31 - 1)] = 0
    cache_salt: str | None = None
    request_id: str | None = None
    user: str | None = None
    metadata: Mapping[str, object] | None = None
    deadline_ms: Annotated[int, Range(1, DEADLINE_MS_MAX)] | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk carries the usage so far."""
        return self.include_usage and (
            self.stream_options is not None and self.stream_options.continuous_usage_stats
        )
