"""POST /v1/responses: the request, and the chat that it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from triolet.errors import InvalidRequest
from triolet.protocol.chat_request import (
    ChatCompletionRequest,
    ChatMessage,
    FunctionCall,
    ToolCall,
    check_chat,
)
from triolet.protocol.converter import structure
from triolet.protocol.fields import NotBuilt, refuse_not_built, unknown_fields
from triolet.protocol.generation_request import (
    JsonSchemaFormat,
    ResponseFormat,
)
from triolet.protocol.json_body import clip
from triolet.protocol.responses_fields import (
    FunctionChoice,
    InputItem,
    Part,
    ResponsesRequest,
    TextFormat,
)
from triolet.protocol.tools import (
    NamedFunction,
    NamedToolChoice,
    Tool,
    ToolChoiceMode,
    flat_tools,
)

T = TypeVar("T")

ITEMS_MAX = 8192

RESPONSES_NOT_BUILT: Mapping[str, NotBuilt] = {
    "conversation": NotBuilt("use previous_response_id"),
    "prompt": NotBuilt("the server keeps no prompt templates"),
    "top_logprobs": NotBuilt("use /v1/chat/completions", (0,)),
}

WITHOUT_EFFECT = frozenset(
    {
        *("client_metadata", "max_tool_calls", "moderation", "prompt_cache_key"),
        *("prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier"),
        "stream_options",
    }
)
"""About the provider's bookkeeping or tools that it runs itself."""

RESPONSES_NAMES = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "structured_outputs.json": "text.format.schema",
}
"""Fields of the engine and of chats -> fields of this protocol."""

_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})


def parse_responses_request(
    body: Mapping[str, object],
) -> tuple[ResponsesRequest, tuple[str, ...]]:
    """Read a parsed body.

    Returns:
        The request, and the names of fields without effect.

    Raises:
        InvalidRequest: The first fault, with the path of its field.
    """
    refuse_not_built(body, RESPONSES_NOT_BUILT)
    request = structure(body, ResponsesRequest)
    if "message.output_text.logprobs" in (request.include or ()):
        raise InvalidRequest(
            "include: 'message.output_text.logprobs' is not supported: use /v1/chat/completions",
            param="include",
            code="unsupported_parameter",
        )
    if request.background and not request.store:
        raise InvalidRequest("background needs store to be true", param="background")
    if not request.items or len(request.items) > ITEMS_MAX:
        raise InvalidRequest(
            f"input must hold 1..{ITEMS_MAX} items, got {len(request.items)}", param="input"
        )
    with flat_tools("parameters", request.tool_places):
        chat_of(request, ())  # whatever is wrong with it is found here, off the loop
    unknown = unknown_fields(body, ResponsesRequest, RESPONSES_NOT_BUILT)
    names = [name for name in unknown if name not in WITHOUT_EFFECT]
    return request, (*names, *_ignored_parts(request))


def _ignored_parts(request: ResponsesRequest) -> list[str]:
    names = sorted({f"tools.{t.type}" for t in request.tools or () if t.type != "function"})
    if request.truncation == "auto":
        names.append("truncation")
    if request.text is not None and request.text.verbosity not in (None, "medium"):
        names.append("text.verbosity")
    if request.reasoning is not None and request.reasoning.summary not in (None, "none"):
        names.append("reasoning.summary")
    return names


def chat_of(request: ResponsesRequest, earlier: Sequence[ChatMessage]) -> ChatCompletionRequest:
    """The chat that a request means.

    Args:
        request: As parsed.
        earlier: Messages of the response that it goes on from, without its instructions.

    Raises:
        InvalidRequest: An item or a tool is at fault.
    """
    tools = tuple(Tool(function=function) for function in request.functions) or None
    messages = (*earlier, *messages_of(request.items))
    chat = ChatCompletionRequest(
        model=request.model,
        messages=_with_instructions(request.instructions, messages),
        max_completion_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        seed=request.seed,
        stop=request.stop,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=request.logit_bias,
        ignore_eos=request.ignore_eos,
        tools=tools,
        tool_choice=_choice(request.tool_choice, has_tools=tools is not None),
        parallel_tool_calls=request.parallel_tool_calls,
        response_format=_format(None if request.text is None else request.text.format),
        structured_outputs=request.structured_outputs,
        reasoning_effort=None if request.reasoning is None else request.reasoning.effort,
        include_reasoning=request.include_reasoning,
        stream=request.stream,
        priority=request.priority,
        cache_salt=request.cache_salt,
        deadline_ms=request.deadline_ms,
        chat_template_kwargs=request.chat_template_kwargs,
    )
    check_chat(chat)
    return chat


def messages_of(items: Sequence[InputItem]) -> tuple[ChatMessage, ...]:
    """The chat messages of input items: calls in a row are one assistant's turn.

    Raises:
        InvalidRequest: An item is at fault.
    """
    messages: list[ChatMessage] = []
    thought: str | None = None
    for i, item in enumerate(items):
        at = f"input[{i}]"
        match item.type:
            case "reasoning":
                thought = _thought(item, at) or thought
            case "message":
                content = _text_of(item.content, f"{at}.content")
                message = ChatMessage(role=_needed(item.role, f"{at}.role"), content=content)
                if message.role == "assistant":
                    message, thought = replace(message, reasoning=thought), None
                messages.append(message)
            case "function_call":
                _add_call(messages, _call(item, at), thought)
                thought = None
            case "function_call_output":
                output = _text_of(item.output, f"{at}.output")
                call_id = _needed(item.call_id, f"{at}.call_id")
                messages.append(ChatMessage(role="tool", content=output, tool_call_id=call_id))
            case _:
                raise InvalidRequest(
                    f"{at}.type: expected 'message', 'function_call', 'function_call_output' or "
                    f"'reasoning', got {clip(item.type)}",
                    param=f"{at}.type",
                )
    return tuple(messages)


def _add_call(messages: list[ChatMessage], call: ToolCall, thought: str | None) -> None:
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant":
        last = ChatMessage(role="assistant", content="")
        messages.append(last)
    messages[-1] = replace(
        last, tool_calls=(*(last.tool_calls or ()), call), reasoning=thought or last.reasoning
    )


def _call(item: InputItem, at: str) -> ToolCall:
    return ToolCall(
        id=_needed(item.call_id, f"{at}.call_id"),
        function=FunctionCall(
            name=_needed(item.name, f"{at}.name"),
            arguments=_needed(item.arguments, f"{at}.arguments"),
        ),
    )


def _with_instructions(
    instructions: str | None, messages: tuple[ChatMessage, ...]
) -> tuple[ChatMessage, ...]:
    """Instructions and what the developer says first are one system message.

    Templates take a system message at the beginning only, and clients send several.
    """
    texts = [instructions] if instructions else []
    first = 0
    while first < len(messages) and messages[first].role in ("system", "developer"):
        texts.append(str(messages[first].content or ""))
        first += 1
    if not texts:
        return messages
    return (ChatMessage(role="system", content="\n\n".join(texts)), *messages[first:])


def _choice(
    choice: ToolChoiceMode | FunctionChoice | None, *, has_tools: bool
) -> ToolChoiceMode | NamedToolChoice | None:
    if isinstance(choice, FunctionChoice):
        return NamedToolChoice(function=NamedFunction(name=choice.name))
    # Without a function among the tools there is nothing to choose from, or to forbid.
    return choice if has_tools or choice == "required" else None


def _format(wanted: TextFormat | None) -> ResponseFormat | None:
    if wanted is None or wanted.type != "json_schema":
        return None if wanted is None else ResponseFormat(type=wanted.type)
    if wanted.schema is None:
        raise InvalidRequest(
            "text.format.schema is required with type 'json_schema'", param="text.format.schema"
        )
    schema = JsonSchemaFormat(
        name=wanted.name or "output", schema=wanted.schema, strict=wanted.strict
    )
    return ResponseFormat(type="json_schema", json_schema=schema)


def _thought(item: InputItem, at: str) -> str:
    """Text of a reasoning item, which a client may have stripped of it."""
    if item.content:
        return _text_of(item.content, f"{at}.content")
    return _text_of(item.summary, f"{at}.summary") if item.summary else ""


def _text_of(content: str | tuple[Part, ...] | None, path: str) -> str:
    if content is None:
        raise InvalidRequest(f"{path}: this field is required", param=path)
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for i, part in enumerate(content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in _TEXT_PARTS and part.type != "refusal":
            raise InvalidRequest(
                f"{path}[{i}].type: expected 'input_text' (only text goes in), got "
                f"{clip(part.type)}",
                param=f"{path}[{i}].type",
            )
        texts.append(_needed(text, f"{path}[{i}].text"))
    return "\n".join(texts)


def _needed(value: T | None, path: str) -> T:
    if value is None:
        raise InvalidRequest(f"{path}: this field is required", param=path)
    return value
