"""Three classes of request field: built, known but not built, unknown.

A field that is built is a field of the request's dataclass. One that the protocol knows and
triolet does not do is refused by name, unless its value asks for nothing. An unknown field is
accepted and reported to the caller, so that a typing error does not pass in silence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from triolet.errors import InvalidRequest

IGNORED_NAMES_MAX = 16
"""Names listed in `X-Triolet-Ignored`; the header stays under 1 KB."""
IGNORED_NAME_CHARS_MAX = 48


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number, both included: `Annotated[int, Range(0, 20)]`."""

    low: float = -math.inf
    high: float = math.inf

    def describe(self) -> str:
        """The bounds in words."""
        if math.isinf(self.high):
            return f"at least {self.low}"
        if math.isinf(self.low):
            return f"at most {self.high}"
        return f"between {self.low} and {self.high}"


@dataclasses.dataclass(frozen=True, slots=True)
class NotBuilt:
    """A field of the protocol that triolet does not do.

    Attributes:
        why: What to do instead, or what is missing; ends the error message.
        neutral: Values that ask for nothing and are accepted, besides null.
    """

    why: str
    neutral: tuple[object, ...] = ()


_FUNCTIONS = "use tools and tool_choice, which replaced it"
_GUIDED = "use structured_outputs, which replaced it"
_MEDIA = "only text goes in and out"

SHARED_NOT_BUILT: Mapping[str, NotBuilt] = {
    "logprob_token_ids": NotBuilt("use top_logprobs"),
    "prompt_embeds": NotBuilt("send text or token ids"),
    "spaces_between_special_tokens": NotBuilt("special tokens are joined as they are", (True,)),
    "thinking_token_budget": NotBuilt("use max_tokens", (-1,)),
    "repetition_detection": NotBuilt("use frequency_penalty"),
    "kv_transfer_params": NotBuilt("KV blocks are not moved between servers"),
    "ec_transfer_params": NotBuilt("there is no encoder whose cache could be moved"),
    "stream_interval": NotBuilt("every step is streamed", (1,)),
    "return_weight_versions": NotBuilt("weights do not change while serving", (False,)),
    "watermarking": NotBuilt("outputs are not marked", (False,)),
    "guided_json": NotBuilt(_GUIDED),
    "guided_regex": NotBuilt(_GUIDED),
    "guided_choice": NotBuilt(_GUIDED),
    "guided_grammar": NotBuilt(_GUIDED),
    "vllm_xargs": NotBuilt("extra arguments have no receiver here", ({},)),
    "logits_processors": NotBuilt("name them when the server is started"),
}

CHAT_NOT_BUILT: Mapping[str, NotBuilt] = {
    **SHARED_NOT_BUILT,
    "functions": NotBuilt(_FUNCTIONS),
    "function_call": NotBuilt(_FUNCTIONS, ("none",)),
    "verbosity": NotBuilt("say it in the prompt", ("medium",)),
    "audio": NotBuilt(_MEDIA),
    "modalities": NotBuilt(_MEDIA, (["text"],)),
    "prediction": NotBuilt("predicted outputs are not built"),
    "web_search_options": NotBuilt("the server fetches nothing"),
    "chat_template": NotBuilt("templates are the server's configuration, not the request's"),
    "media_io_kwargs": NotBuilt(_MEDIA),
    "mm_processor_kwargs": NotBuilt(_MEDIA),
    "add_special_tokens": NotBuilt("the template writes them itself", (False,)),
    "return_prompt_text": NotBuilt("ask /v1/chat/completions/render", (False,)),
}

COMPLETION_NOT_BUILT: Mapping[str, NotBuilt] = {
    **SHARED_NOT_BUILT,
    "suffix": NotBuilt("no served model has a fill-in-the-middle template", ("",)),
    "best_of": NotBuilt("use n", (1,)),
}

WITHOUT_EFFECT = frozenset(
    {
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "session_id",
    }
)
"""Known fields that concern the provider's bookkeeping, not the answer: accepted in silence."""


def refuse_not_built(body: Mapping[str, object], not_built: Mapping[str, NotBuilt]) -> None:
    """Refuse the first field that asks for something triolet does not do.

    Raises:
        InvalidRequest: `param` names the field, `code` is "unsupported_parameter".
    """
    for name, entry in not_built.items():
        value = body.get(name)
        if value is None or any(
            type(value) is type(neutral) and value == neutral for neutral in entry.neutral
        ):
            continue
        raise InvalidRequest(
            f"{name} is not supported: {entry.why}", param=name, code="unsupported_parameter"
        )


def unknown_fields(
    body: Mapping[str, object], cls: type, not_built: Mapping[str, NotBuilt]
) -> tuple[str, ...]:
    """Names of top-level fields that mean nothing to the protocol, in the order sent."""
    known = {field.name for field in dataclasses.fields(cls)} | WITHOUT_EFFECT | set(not_built)
    return tuple(name for name in body if name not in known)


def ignored_header(names: tuple[str, ...]) -> str:
    """Value of `X-Triolet-Ignored`: a bounded list of names, safe in a header."""
    shown = [
        "".join(c if c.isascii() and (c.isalnum() or c in "_-.") else "?" for c in name)[
            :IGNORED_NAME_CHARS_MAX
        ]
        for name in names[:IGNORED_NAMES_MAX]
    ]
    rest = len(names) - len(shown)
    return ", ".join([*shown, f"and {rest} more"] if rest else shown)
