"""POST /v1/messages and /v1/messages/count_tokens: requests, and the chats that they mean."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from triolet.errors import InvalidRequest
from triolet.protocol.anthropic_fields import (
    AnthropicMessage,
    AnthropicTool,
    AnthropicToolChoice,
    Block,
    CountTokensRequest,
    InnerBlock,
    MessagesRequest,
    OutputConfig,
    OutputFormat,
    Thinking,
)
from triolet.protocol.chat_request import (
    MESSAGES_MAX,
    ChatCompletionRequest,
    ChatMessage,
    FunctionCall,
    ReasoningEffort,
    ToolCall,
    check_chat,
)
from triolet.protocol.converter import structure
from triolet.protocol.fields import NotBuilt, refuse_not_built, unknown_fields
from triolet.protocol.generation_request import JsonSchemaFormat, ResponseFormat
from triolet.protocol.json_body import clip
from triolet.protocol.tools import (
    FunctionSpec,
    NamedFunction,
    NamedToolChoice,
    Tool,
    ToolChoiceMode,
    flat_tools,
)

_TEXT_ONLY = "only text goes in and out"

ANTHROPIC_NOT_BUILT: Mapping[str, NotBuilt] = {
    "container": NotBuilt("code is not run here"),
    "mcp_servers": NotBuilt("the server calls no other servers", ([],)),
}

ANTHROPIC_NAMES = {
    "prompt": "messages",
    "stop": "stop_sequences",
    "structured_outputs.json": "output_config.format.schema",
}
"""Fields of the engine -> fields of this protocol."""

WITHOUT_EFFECT = frozenset({"metadata", "service_tier", "cache_control", "inference_geo"})
"""About the provider's bookkeeping: prefixes are cached here without being asked."""


def parse_messages_request(
    body: Mapping[str, object],
) -> tuple[MessagesRequest, ChatCompletionRequest, tuple[str, ...]]:
    """Read a parsed body.

    Returns:
        The request, the chat that it means, and the names of fields without effect.

    Raises:
        InvalidRequest: The first fault, with the path of its field.
    """
    refuse_not_built(body, ANTHROPIC_NOT_BUILT)
    request = structure(body, MessagesRequest)
    chat = replace(
        _chat(request),
        max_tokens=request.max_tokens,
        stream=request.stream,
        stop=request.stop_sequences,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        cache_salt=request.cache_salt,
    )
    with flat_tools("input_schema", request.tool_places):
        check_chat(chat)
    ignored = unknown_fields(body, MessagesRequest, ANTHROPIC_NOT_BUILT)
    names = [name for name in ignored if name not in WITHOUT_EFFECT]
    return request, chat, (*names, *_ignored_parts(request))


def parse_count_tokens_request(body: Mapping[str, object]) -> ChatCompletionRequest:
    """Read a parsed body: the chat whose prompt is to be counted.

    Raises:
        InvalidRequest: The first fault, with the path of its field.
    """
    request = structure(body, CountTokensRequest)
    chat = _chat(request)
    with flat_tools("input_schema", request.tool_places):
        check_chat(chat)
    return chat


def _ignored_parts(request: MessagesRequest) -> list[str]:
    names = [f"tools.{tool.type}" for tool in request.tools or () if tool.type != "custom"]
    if request.thinking is not None and request.thinking.budget_tokens is not None:
        names.append("thinking.budget_tokens")
    return names


def _chat(request: CountTokensRequest) -> ChatCompletionRequest:
    if not request.messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    if len(request.messages) > MESSAGES_MAX:
        raise InvalidRequest(
            f"messages holds {len(request.messages)} messages, at most {MESSAGES_MAX} are taken",
            param="messages",
        )
    messages: list[ChatMessage] = []
    if request.system:
        messages.append(ChatMessage(role="system", content=_joined(request.system, "system")))
    for i, message in enumerate(request.messages):
        messages += _messages(message, f"messages[{i}]")
    # An assistant's turn at the end is the beginning of the answer.
    is_prefill = messages[-1].role == "assistant" and not messages[-1].tool_calls
    tools = _tools(request.tools)
    choice, parallel = _choice(request.tool_choice, has_tools=tools is not None)
    config = request.output_config or OutputConfig()
    return ChatCompletionRequest(
        model=request.model,
        messages=tuple(messages),
        add_generation_prompt=not is_prefill,
        continue_final_message=is_prefill,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        response_format=_format(config.format),
        reasoning_effort=_effort(request.thinking, config.effort),
        include_reasoning=request.thinking is None or request.thinking.type != "disabled",
        chat_template_kwargs=getattr(request, "chat_template_kwargs", None),
    )


def _effort(thinking: Thinking | None, effort: ReasoningEffort | None) -> ReasoningEffort | None:
    """Thinking that is switched on or off says how much effort is wanted, too."""
    if thinking is None:
        return effort
    return "none" if thinking.type == "disabled" else effort or "high"


def _format(wanted: OutputFormat | None) -> ResponseFormat | None:
    if wanted is None:
        return None
    schema = JsonSchemaFormat(name="output", schema=wanted.schema, strict=True)
    return ResponseFormat(type="json_schema", json_schema=schema)


def _tools(tools: Sequence[AnthropicTool] | None) -> tuple[Tool, ...] | None:
    own = [tool for tool in tools or () if tool.type == "custom"]
    if not own:
        return None
    return tuple(
        Tool(
            function=FunctionSpec(
                name=tool.name,
                description=tool.description,
                parameters=tool.input_schema,
                strict=tool.strict,
            )
        )
        for tool in own
    )


def _choice(
    choice: AnthropicToolChoice | None, *, has_tools: bool
) -> tuple[ToolChoiceMode | NamedToolChoice | None, bool]:
    """`tool_choice` and `parallel_tool_calls` as chats have them."""
    if choice is None:
        return None, True
    parallel = not choice.disable_parallel_tool_use
    match choice.type:
        case "auto":
            return "auto", parallel
        case "none":
            return "none", parallel
        case "any":
            if not has_tools:
                raise InvalidRequest("tool_choice needs tools", param="tool_choice")
            return "required", parallel
        case "tool":
            if not choice.name:
                raise InvalidRequest(
                    "tool_choice.name: this field is required", param="tool_choice"
                )
            return NamedToolChoice(function=NamedFunction(name=choice.name)), parallel


def _messages(message: AnthropicMessage, path: str) -> list[ChatMessage]:
    """The chat messages of one turn: results of tools are messages of their own, and first."""
    if isinstance(message.content, str):
        return [ChatMessage(role=message.role, content=message.content)]
    results: list[ChatMessage] = []
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for i, block in enumerate(message.content):
        at = f"{path}.content[{i}]"
        match block.type, message.role:
            case "text", _:
                texts.append(_required(block.text, f"{at}.text"))
            case "tool_use", "assistant":
                calls.append(_call(block, at))
            case "thinking", "assistant":
                thoughts.append(_required(block.thinking, f"{at}.thinking"))
            case "redacted_thinking", "assistant":
                pass  # encrypted for another provider: nobody here can read it
            case "tool_result", "user":
                results.append(_result(block, at))
            case _:
                raise InvalidRequest(
                    f"{at}.type: a block of type {clip(block.type)} is not taken from the role "
                    f"{message.role!r}; {_TEXT_ONLY}",
                    param=f"{at}.type",
                )
    if results and not texts:
        return results
    own = ChatMessage(
        role=message.role,
        content="\n".join(texts),
        tool_calls=tuple(calls) or None,
        reasoning="\n".join(thoughts) or None,
    )
    return [*results, own]


def _call(block: Block, at: str) -> ToolCall:
    name = _required(block.name, f"{at}.name")
    return ToolCall(
        id=_required(block.id, f"{at}.id"),
        function=FunctionCall(
            name=name, arguments=json.dumps(dict(block.input or {}), ensure_ascii=False)
        ),
    )


def _result(block: Block, at: str) -> ChatMessage:
    text = "" if block.content is None else _joined(block.content, f"{at}.content")
    return ChatMessage(
        role="tool",
        content=f"Error: {text}" if block.is_error else text,
        tool_call_id=_required(block.tool_use_id, f"{at}.tool_use_id"),
    )


def _joined(content: str | Sequence[InnerBlock], path: str) -> str:
    if isinstance(content, str):
        return content
    for i, block in enumerate(content):
        if block.type != "text":
            raise InvalidRequest(
                f"{path}[{i}].type: expected 'text' ({_TEXT_ONLY}), got {clip(block.type)}",
                param=f"{path}[{i}].type",
            )
    return "\n".join(_required(block.text, f"{path}[{i}].text") for i, block in enumerate(content))


def _required(value: str | None, path: str) -> str:
    if value is None:
        raise InvalidRequest(f"{path}: this field is required", param=path)
    return value
