"""Requests of the wire to `SamplingParams`. The one place that knows both vocabularies.

Precedence of a value: the request, then the model's generation_config, then the protocol.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from triolet.config import SAMPLING_DEFAULTS
from triolet.errors import InvalidRequest
from triolet.protocol.chat_request import ChatCompletionRequest
from triolet.protocol.completion_request import MAX_TOKENS_DEFAULT, CompletionRequest
from triolet.protocol.generation_request import (
    GenerationFields,
    ResponseFormat,
    StructuredOutputsField,
)
from triolet.protocol.json_body import clip
from triolet.sampling_params import SamplingParams, StructuredOutputs

LABEL_CHARS_MAX = 128
CACHE_SALT_CHARS_MAX = 256
_LABEL = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


def chat_sampling(request: ChatCompletionRequest, defaults: Mapping[str, object]) -> SamplingParams:
    """Sampling parameters of a chat request.

    Args:
        request: As parsed.
        defaults: The model's generation_config, or nothing.

    Raises:
        InvalidRequest: A value is out of range; `param` is the field's name on the wire.
    """
    if request.max_tokens == 0 and request.max_completion_tokens is None:
        raise InvalidRequest("max_tokens must be at least 1, got 0", param="max_tokens")
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    names = dict(CHAT_NAMES)
    max_tokens = request.max_tokens
    if request.max_completion_tokens is not None:
        max_tokens = request.max_completion_tokens
        names["max_tokens"] = "max_completion_tokens"
    with wire_names(names):
        return _sampling(request, defaults, max_tokens, logprobs, request.prompt_logprobs)


def completion_sampling(
    request: CompletionRequest, defaults: Mapping[str, object]
) -> SamplingParams:
    """Sampling parameters of a completion request.

    With `echo`, logprobs of the prompt come with those of the completion; `max_tokens` 0
    then means the prompt alone, for which the engine runs one token that is not shown.
    """
    max_tokens = MAX_TOKENS_DEFAULT if request.max_tokens is None else max(1, request.max_tokens)
    prompt_logprobs = request.prompt_logprobs
    if request.echo and request.logprobs is not None:
        prompt_logprobs = max(prompt_logprobs or 0, request.logprobs)
    return _sampling(request, defaults, max_tokens, request.logprobs, prompt_logprobs)


def check_common(request: GenerationFields) -> None:
    """Rules between fields that are neither sampling nor the prompt.

    Raises:
        InvalidRequest: A rule is broken.
    """
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options needs stream to be true", param="stream_options")
    if request.stream and request.prompt_logprobs is not None:
        raise InvalidRequest(
            "prompt_logprobs cannot be streamed; set stream to false", param="prompt_logprobs"
        )
    if request.truncation_side is not None and request.truncate_prompt_tokens is None:
        raise InvalidRequest(
            "truncation_side needs truncate_prompt_tokens", param="truncation_side"
        )
    _check_beam_search(request)
    if request.request_id is not None and not valid_label(request.request_id):
        raise InvalidRequest(
            "request_id must be 1..128 characters of A-Z a-z 0-9 . _ : -", param="request_id"
        )
    if request.cache_salt is not None and not 0 < len(request.cache_salt) <= CACHE_SALT_CHARS_MAX:
        raise InvalidRequest(
            f"cache_salt must be 1..{CACHE_SALT_CHARS_MAX} characters", param="cache_salt"
        )


def _check_beam_search(request: GenerationFields) -> None:
    if not request.use_beam_search:
        if request.length_penalty not in (None, 1.0):
            raise InvalidRequest(
                "length_penalty needs use_beam_search to be true", param="length_penalty"
            )
    elif request.stream:
        raise InvalidRequest(
            "beam search knows its outputs at the end only; set stream to false",
            param="use_beam_search",
        )


def valid_label(label: str) -> bool:
    """Whether a client's own name of a request is short and plain enough to be echoed."""
    return _LABEL.fullmatch(label) is not None


WIRE_NAMES = {"deadline": "deadline_ms", "beam_width": "use_beam_search"}
"""Fields of the engine -> fields of any request."""

CHAT_NAMES = {**WIRE_NAMES, "prompt": "messages", "logprobs": "top_logprobs"}
"""Fields of the engine -> fields of a chat request."""


@contextmanager
def wire_names(names: Mapping[str, str]) -> Generator[None]:
    """Name the field as the client wrote it in errors of the engine's vocabulary."""
    try:
        yield
    except InvalidRequest as error:
        wire = names.get(error.param or "")
        if wire is not None and error.message.startswith((f"{error.param} ", f"{error.param}:")):
            error.message = wire + error.message.removeprefix(error.param or "")
        error.param = wire or error.param
        raise


def _sampling(
    request: GenerationFields,
    defaults: Mapping[str, object],
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    chosen: dict[str, object] = {}
    if request.use_beam_search:
        # As in vLLM, n is the width. The model's defaults are for sampling.
        chosen["beam_width"] = request.n
        chosen["length_penalty"] = 1.0 if request.length_penalty is None else request.length_penalty
        defaults = {}
    for name in (*SAMPLING_DEFAULTS, "presence_penalty", "frequency_penalty"):
        value = getattr(request, name)
        if value is None and name in SAMPLING_DEFAULTS:
            value = defaults.get(name)
        if value is not None:
            chosen[name] = value
    return SamplingParams(
        n=request.n,
        seed=None if request.seed == -1 else request.seed,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        stop=request.stop,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        include_stop_str_in_output=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        logit_bias=_logit_bias(request.logit_bias or {}),
        bad_words=request.bad_words,
        allowed_token_ids=request.allowed_token_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        structured_outputs=_structured(request),
        **chosen,  # type: ignore[arg-type]  # checked by SamplingParams itself
    )


def _logit_bias(bias: Mapping[str, float]) -> dict[int, float]:
    out: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise InvalidRequest(
                f"logit_bias: keys must be token ids, got {clip(key)}", param="logit_bias"
            )
        out[int(key)] = value
    return out


def _structured(request: GenerationFields) -> StructuredOutputs | None:
    both = request.response_format is not None and request.response_format.type != "text"
    if both and request.structured_outputs is not None:
        raise InvalidRequest(
            "response_format and structured_outputs exclude each other", param="response_format"
        )
    if request.structured_outputs is not None:
        return _from_structured_outputs(request.structured_outputs)
    return None if request.response_format is None else _from_format(request.response_format)


def _from_format(response_format: ResponseFormat) -> StructuredOutputs | None:
    match response_format.type:
        case "text":
            return None
        case "json_object":
            return StructuredOutputs(json_object=True, any_whitespace=True)
        case "json_schema":
            schema = response_format.json_schema
            if schema is None:
                raise InvalidRequest(
                    "response_format.json_schema is required with type 'json_schema'",
                    param="response_format.json_schema",
                )
            return StructuredOutputs(
                json_schema=json.dumps(schema.schema), strict=schema.strict, any_whitespace=True
            )


def _from_structured_outputs(field: StructuredOutputsField) -> StructuredOutputs:
    for name in ("whitespace_pattern", "disable_additional_properties", "structural_tag"):
        if getattr(field, name):
            param = f"structured_outputs.{name}"
            raise InvalidRequest(
                f"{param} is not supported: llguidance has no such option",
                param=param,
                code="unsupported_parameter",
            )
    schema = field.json
    return StructuredOutputs(
        json_schema=schema if schema is None or isinstance(schema, str) else json.dumps(schema),
        json_object=field.json_object,
        regex=field.regex,
        choice=field.choice,
        grammar=field.grammar,
        any_whitespace=not field.disable_any_whitespace,
    )
