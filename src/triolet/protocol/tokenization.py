"""What a client may ask about a model without running it: /v1/models, /tokenize, /detokenize."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from triolet.errors import InvalidRequest
from triolet.protocol.chat_request import ChatCompletionRequest, ChatMessage, check_chat
from triolet.protocol.completion_request import TokenId
from triolet.protocol.converter import structure
from triolet.protocol.fields import CHAT_NOT_BUILT, refuse_not_built, unknown_fields
from triolet.protocol.tools import Tool

TOKENIZE_NOT_BUILT = {"chat_template": CHAT_NOT_BUILT["chat_template"]}

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
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: Mapping[str, object] | None = None
    tools: tuple[Tool, ...] | None = None
    return_token_strs: bool = False

    @property
    def chat(self) -> ChatCompletionRequest | None:
        """The chat whose prompt is to be tokenized, if it is one."""
        if self.messages is None:
            return None
        return ChatCompletionRequest(
            messages=self.messages,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            chat_template_kwargs=self.chat_template_kwargs,
            tools=self.tools,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeRequest:
    """Token ids to read."""

    tokens: tuple[TokenId, ...]
    model: str | None = None
    skip_special_tokens: bool = False


def parse_tokenize_request(
    body: Mapping[str, object],
) -> tuple[TokenizeRequest, tuple[str, ...]]:
    """Read a parsed body.

    Returns:
        The request, and the names of the fields that are unknown.

    Raises:
        InvalidRequest: The first fault, with the path of its field.
    """
    refuse_not_built(body, TOKENIZE_NOT_BUILT)
    request = structure(body, TokenizeRequest)
    if (request.prompt is None) == (not request.messages):
        raise InvalidRequest("give exactly one of prompt and messages", param="prompt")
    if request.chat is not None:
        if request.add_special_tokens:
            raise InvalidRequest(
                "add_special_tokens is for prompt: a chat's template writes them itself",
                param="add_special_tokens",
            )
        check_chat(request.chat)
    return request, unknown_fields(body, TokenizeRequest, TOKENIZE_NOT_BUILT)


def parse_detokenize_request(
    body: Mapping[str, object],
) -> tuple[DetokenizeRequest, tuple[str, ...]]:
    """Read a parsed body.

    Returns:
        The request, and the names of the fields that are unknown.

    Raises:
        InvalidRequest: The first fault, with the path of its field.
    """
    request = structure(body, DetokenizeRequest)
    if len(request.tokens) > DETOKENIZE_MAX:
        raise InvalidRequest(
            f"tokens holds {len(request.tokens)} ids, at most {DETOKENIZE_MAX} are taken",
            param="tokens",
        )
    return request, unknown_fields(body, DetokenizeRequest, {})
