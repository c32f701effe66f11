"""`usage` on the wire, and counting it while a request runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from triolet.output import Usage


def wire_usage(usages: Iterable[Usage], reasoning_tokens: int | None = None) -> dict[str, object]:
    """The usage object of a request: sums over its prompts.

    A prompt counts once whatever n is; completion tokens are those of all outputs.

    Args:
        usages: One per prompt.
        reasoning_tokens: Completion tokens that are reasoning, None if the model has none.
    """
    prompt = completion = cached = 0
    for usage in usages:
        prompt += usage.prompt_tokens
        completion += usage.completion_tokens
        cached += usage.cached_tokens
    details: Mapping[str, int] = {"cached_tokens": cached}
    value: dict[str, object] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": details,
    }
    if reasoning_tokens is not None:
        value["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return value
