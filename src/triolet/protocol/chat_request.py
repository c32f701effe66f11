"""POST /v1/chat/completions: the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from triolet.errors import InvalidRequest
from triolet.protocol.converter import structure
from triolet.protocol.fields import CHAT_NOT_BUILT, Range, refuse_not_built, unknown_fields
from triolet.protocol.generation_request import GenerationFields
from triolet.protocol.json_body import clip, json_type, parse_object
from triolet.protocol.tools import NamedToolChoice, Tool, ToolChoiceMode, ToolUse, tool_use

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

MESSAGES_MAX = 8192
"""More turns than any context holds; bounds the work before tokenizing."""

TEMPLATE_KWARGS_MAX = 32
"""Switches a template may be given."""
TEMPLATE_KWARG_CHARS_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """The call inside an assistant's `tool_calls`."""

    name: str
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that an assistant made in an earlier turn."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentPart:
    """One part of a message. Only text goes in; see `_text`."""

    type: str
    text: str | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One turn. Empty or null content is an empty turn, as the OpenAI service takes it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | tuple[ContentPart, ...] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletionRequest(GenerationFields):
    """A chat to continue."""

    messages: tuple[ChatMessage, ...]
    max_completion_tokens: Annotated[int, Range(low=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Range(low=0)] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: Mapping[str, object] | None = None
    documents: tuple[Mapping[str, object], ...] | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: ToolChoiceMode | NamedToolChoice | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool = True

    @property
    def tool_use(self) -> ToolUse:
        """Its tools and what the model may do with them.

        Raises:
            InvalidRequest: They do not fit.
        """
        return tool_use(self.tools, self.tool_choice, parallel=self.parallel_tool_calls)

    @property
    def template_messages(self) -> tuple[dict[str, object], ...]:
        """The messages as a chat template takes them: content is one string."""
        return tuple(template_message(i, m) for i, m in enumerate(self.messages))


def parse_chat_request(
    body: Mapping[str, object],
) -> tuple[ChatCompletionRequest, tuple[str, ...]]:
    """Read a parsed body.

    Returns:
        The request, and the names of the fields that are unknown.

    Raises:
        InvalidRequest: The first fault, with the path of its field.
    """
    refuse_not_built(body, CHAT_NOT_BUILT)
    request = structure(body, ChatCompletionRequest)
    check_chat(request)
    return request, unknown_fields(body, ChatCompletionRequest, CHAT_NOT_BUILT)


def check_chat(request: ChatCompletionRequest) -> None:
    """Rules between the fields of a chat.

    Raises:
        InvalidRequest: One is broken.
    """
    if not request.messages:
        raise InvalidRequest("messages must hold at least one message", param="messages")
    if len(request.messages) > MESSAGES_MAX:
        raise InvalidRequest(
            f"messages holds {len(request.messages)} messages, at most {MESSAGES_MAX} are taken",
            param="messages",
        )
    for i in range(len(request.messages)):
        template_message(i, request.messages[i])
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    if request.add_generation_prompt and request.continue_final_message:
        raise InvalidRequest(
            "continue_final_message needs add_generation_prompt to be false",
            param="continue_final_message",
        )
    _check_template_kwargs(request.chat_template_kwargs or {})
    _check_tools(request)


def _check_tools(request: ChatCompletionRequest) -> None:
    if not request.tool_use.must_call:
        return
    if request.structured_outputs is not None or (
        request.response_format is not None and request.response_format.type != "text"
    ):
        raise InvalidRequest(
            "tool_choice demands a call, so the text of the answer cannot be constrained too; "
            "leave response_format and structured_outputs out, or let tool_choice be 'auto'",
            param="tool_choice",
        )


def _check_template_kwargs(kwargs: Mapping[str, object]) -> None:
    """Scalars only: a template is server configuration, its switches are the request's."""
    if len(kwargs) > TEMPLATE_KWARGS_MAX:
        raise InvalidRequest(
            f"chat_template_kwargs takes at most {TEMPLATE_KWARGS_MAX} entries",
            param="chat_template_kwargs",
        )
    for name, value in kwargs.items():
        param = f"chat_template_kwargs.{name[:64]}"
        if isinstance(value, (list, dict)):
            raise InvalidRequest(
                f"{param} must be a string, number, boolean or null, got {json_type(value)}",
                param=param,
            )
        if isinstance(value, str) and len(value) > TEMPLATE_KWARG_CHARS_MAX:
            raise InvalidRequest(
                f"{param} is longer than {TEMPLATE_KWARG_CHARS_MAX} characters", param=param
            )
        if name in _RESERVED_KWARGS:
            raise InvalidRequest(
                f"{param} is set by the request's own fields or by the server", param=param
            )


_RESERVED_KWARGS = frozenset(
    {
        "chat_template",
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
    }
)


def template_message(index: int, message: ChatMessage) -> dict[str, object]:
    """One message as a chat template takes it.

    Raises:
        InvalidRequest: A part of its content is not text.
    """
    out: dict[str, object] = {
        "role": message.role,
        "content": _text(index, message.content),
    }
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            out[name] = value
    if (reasoning := message.reasoning or message.reasoning_content) is not None:
        # Templates disagree on the name; both are the same text.
        out["reasoning"] = out["reasoning_content"] = reasoning
    if message.tool_calls:
        param = f"messages[{index}].tool_calls"
        out["tool_calls"] = [
            _tool_call(f"{param}[{i}].function.arguments", call)
            for i, call in enumerate(message.tool_calls)
        ]
    return out


def _text(index: int, content: str | tuple[ContentPart, ...] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for i, part in enumerate(content):
        param = f"messages[{index}].content[{i}]"
        match part.type:
            case "text" | "input_text" | "output_text":
                text = part.text
            case "refusal":
                text = part.refusal
            case _:
                raise InvalidRequest(
                    f"{param}.type: expected 'text' (only text goes in), got {clip(part.type)}",
                    param=f"{param}.type",
                )
        if text is None:
            raise InvalidRequest(f"{param}.text: this field is required", param=f"{param}.text")
        texts.append(text)
    return "\n".join(texts)  # as vLLM joins them (entrypoints/chat_utils.py)


def _tool_call(param: str, call: ToolCall) -> dict[str, object]:
    """Templates take the arguments as an object; the wire has them as JSON text."""
    arguments: object = call.function.arguments
    try:
        arguments = parse_object((call.function.arguments or "{}").encode())
    except InvalidRequest as error:
        if error.code == "too_many_values":
            message = error.message.replace("the request body", f"{param}:")
            raise InvalidRequest(message, param=param, code=error.code) from None
        # No JSON object: the template gets what the model wrote.
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }
