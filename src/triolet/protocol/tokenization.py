"""What a client may ask about a model without running it: /v1/models, /tokenize, /detokenize."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from triolet.errors import InvalidRequest
from triolet.protocol.chat_request import ChatMessage, template_message
from triolet.protocol.completion_request import TokenId
from triolet.protocol.converter import structure

DETOKENIZE_MAX = 1 << 17
"""Ids in one request: what the longest contexts hold. Decoding a million holds the interpreter."""


def model_card(name: str, created: int, root: str, max_model_len: int) -> dict[str, object]:
    """One model as clients list it.

    Args:
        name: What it is called in requests.
        created: Unix time in seconds.
        root: The model behind the name.
        max_model_len: Longest context in tokens.
    """
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "triolet",
        "root": root,
        "parent": None,
        "max_model_len": max_model_len,
    }


def anthropic_model_card(name: str, created: int, max_model_len: int) -> dict[str, object]:
    """One model as Anthropic's clients list it.

    Args:
        name: What it is called in requests.
        created: Unix time in seconds.
        max_model_len: Longest context in tokens, prompt and answer together.
    """
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": max_model_len,
        "max_tokens": max_model_len,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest:
    """Text or messages to count."""

    model: str | None = None
    prompt: str | None = None
    messages: tuple[ChatMessage, ...] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False

    @property
    def template_messages(self) -> tuple[dict[str, object], ...]:
        """The messages as a chat template takes them."""
        return tuple(template_message(i, m) for i, m in enumerate(self.messages or ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeRequest:
    """Token ids to read."""

    tokens: tuple[TokenId, ...]
    model: str | None = None
    skip_special_tokens: bool = False


def parse_tokenize_request(body: Mapping[str, object]) -> TokenizeRequest:
    """Read a parsed body.

    Raises:
        InvalidRequest: The first fault, with the path of its field.
    """
    request = structure(body, TokenizeRequest)
    if (request.prompt is None) == (not request.messages):
        raise InvalidRequest("give exactly one of prompt and messages", param="prompt")
    if request.messages and request.add_generation_prompt and request.continue_final_message:
        raise InvalidRequest(
            "continue_final_message needs add_generation_prompt to be false",
            param="continue_final_message",
        )
    return request


def parse_detokenize_request(body: Mapping[str, object]) -> DetokenizeRequest:
    """Read a parsed body.

    Raises:
        InvalidRequest: The first fault, with the path of its field.
    """
    request = structure(body, DetokenizeRequest)
    if len(request.tokens) > DETOKENIZE_MAX:
        raise InvalidRequest(
            f"tokens holds {len(request.tokens)} ids, at most {DETOKENIZE_MAX} are taken",
            param="tokens",
        )
    return request
