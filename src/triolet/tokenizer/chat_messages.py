"""Messages as they come over the wire, brought into the shape that a template understands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs

from triolet.errors import InvalidRequest
from triolet.tokenizer.tokenizer import Message

MESSAGES_MAX = 4096
"""Some templates look at every message once per message; this keeps that a short time."""

TEXT_PART_TYPES = frozenset({"text", "input_text", "output_text", "refusal"})
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Names under which clients send an assistant's reasoning; templates read the first two."""


@attrs.frozen
class ContentForm:
    """What one template understands.

    Attributes:
        takes_text: `content` may be a string.
        takes_parts: `content` may be a list of `{"type": "text", "text": ...}`.
        arguments_as_text: A tool call's arguments are JSON text rather than an object.
        knows_developer: The role "developer" appears in it; else it is called "system".
    """

    takes_text: bool
    takes_parts: bool
    arguments_as_text: bool
    knows_developer: bool


def normalize_messages(messages: Sequence[Message], form: ContentForm) -> list[dict[str, Any]]:
    """Fresh messages that the template can render; the caller's are left alone.

    Keys whose value is None are dropped: many templates write the word "None" for them.

    Raises:
        InvalidRequest: There are no messages or too many, a content part is no text, or a
            tool call's arguments are not the JSON text of an object.
    """
    if not messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    if len(messages) > MESSAGES_MAX:
        raise InvalidRequest(
            f"messages must hold at most {MESSAGES_MAX} messages, got {len(messages)}",
            param="messages",
        )
    return [_normalize(m, form, f"messages[{i}]") for i, m in enumerate(messages)]


def _normalize(message: Message, form: ContentForm, path: str) -> dict[str, Any]:
    result: dict[str, Any] = {key: value for key, value in message.items() if value is not None}
    if result.get("role") == "developer" and not form.knows_developer:
        result["role"] = "system"
    if "content" in result:
        result["content"] = _content(result["content"], form, f"{path}.content")
    if "tool_calls" in result:
        calls = cast("Sequence[Mapping[str, Any]]", result["tool_calls"])
        result["tool_calls"] = [
            _tool_call(call, form, f"{path}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    reasoning = next((result[name] for name in REASONING_FIELDS if name in result), None)
    if reasoning is not None:
        result = {"thinking": reasoning, **result, "reasoning_content": reasoning}
    return result


def _content(content: object, form: ContentForm, path: str) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content if form.takes_text else [{"type": "text", "text": content}]
    if not isinstance(content, (list, tuple)):
        raise InvalidRequest(
            f"{path} must be a string or a list of parts, got {type(content).__name__}", param=path
        )
    parts = cast("Sequence[object]", content)
    texts = [_part_text(part, f"{path}[{i}]") for i, part in enumerate(parts)]
    if form.takes_parts:
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts)  # as vLLM and llama.cpp join them


def _part_text(part: object, path: str) -> str:
    if isinstance(part, Mapping):
        fields = cast("Mapping[str, object]", part)
        kind = fields.get("type", "text")
        text = fields.get("refusal" if kind == "refusal" else "text")
        if kind in TEXT_PART_TYPES and isinstance(text, str):
            return text
        if kind not in TEXT_PART_TYPES:
            raise InvalidRequest(
                f"{path}.type is {str(kind)[:64]!r}, but this model reads only text",
                param=f"{path}.type",
            )
    raise InvalidRequest(f"{path} must be an object with the field text, a string", param=path)


def _tool_call(call: Mapping[str, Any], form: ContentForm, path: str) -> dict[str, Any]:
    """A call with its arguments as an object, or as JSON text where the template joins them."""
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"{path}.function must be an object", param=f"{path}.function")
    fields = dict(cast("Mapping[str, Any]", function))
    arguments = fields.get("arguments")
    if isinstance(arguments, str) and not form.arguments_as_text:
        fields["arguments"] = _arguments_object(arguments, f"{path}.function.arguments")
    elif isinstance(arguments, Mapping) and form.arguments_as_text:
        fields["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": fields}


def _arguments_object(text: str, path: str) -> dict[str, Any]:
    if not text.strip():
        return {}  # what clients send back for a call without arguments
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} must be valid JSON: {error}", param=path) from error
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"{path} must be the JSON text of an object", param=path)
    return cast("dict[str, Any]", arguments)
