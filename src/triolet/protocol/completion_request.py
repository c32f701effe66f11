"""POST /v1/completions: the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, cast

from triolet.errors import InvalidRequest
from triolet.protocol.converter import structure
from triolet.protocol.fields import COMPLETION_NOT_BUILT, Range, refuse_not_built, unknown_fields
from triolet.protocol.generation_request import GenerationFields

PROMPTS_MAX = 1024
"""Prompts in one request (vLLM's limit); each is a request of the engine."""

CHOICES_MAX = 1024
"""Outputs of all prompts together; bounds what an answer holds before anything is admitted."""

MAX_TOKENS_DEFAULT = 16
"""OpenAI's default of `max_tokens`, for completions only."""

TokenId = Annotated[int, Range(0, 2**31 - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(GenerationFields):
    """Texts, or lists of token ids, to continue."""

    prompt: str | tuple[str, ...] | tuple[TokenId, ...] | tuple[tuple[TokenId, ...], ...]
    logprobs: Annotated[int, Range(low=0)] | None = None
    add_special_tokens: bool = True

    @property
    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """Every prompt of the request, in the order of the choices."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return (prompt,)
        # One id means that all are; there may be a million, which are not looked at again.
        is_ids = len(prompt) > 0 and isinstance(prompt[0], int)
        prompts: object = (prompt,) if is_ids else prompt
        return cast("tuple[str | tuple[int, ...], ...]", prompts)


def parse_completion_request(
    body: Mapping[str, object],
) -> tuple[CompletionRequest, tuple[str, ...]]:
    """Read a parsed body.

    Returns:
        The request, and the names of the fields that are unknown.

    Raises:
        InvalidRequest: The first fault, with the path of its field.
    """
    refuse_not_built(body, COMPLETION_NOT_BUILT)
    request = structure(body, CompletionRequest)
    prompts = request.prompts
    if not prompts or not all(prompts):
        raise InvalidRequest("prompt must not be empty, nor hold an empty prompt", param="prompt")
    if len(prompts) > PROMPTS_MAX:
        raise InvalidRequest(
            f"prompt holds {len(prompts)} prompts, at most {PROMPTS_MAX} are taken", param="prompt"
        )
    if len(prompts) * max(request.n, 1) > CHOICES_MAX:
        raise InvalidRequest(
            f"n: {len(prompts)} prompts with n {request.n} are more than {CHOICES_MAX} choices",
            param="n",
        )
    if request.max_tokens == 0 and not request.echo:
        raise InvalidRequest(
            "max_tokens must be at least 1; 0 is for echo, which returns the prompt",
            param="max_tokens",
        )
    return request, unknown_fields(body, CompletionRequest, COMPLETION_NOT_BUILT)
