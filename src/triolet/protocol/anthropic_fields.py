"""Fields of POST /v1/messages and /v1/messages/count_tokens.

Names and rules are those of the Anthropic Messages API (version 2023-06-01 and later, as its
Python SDK sends them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from triolet.protocol.chat_request import ReasoningEffort
from triolet.protocol.fields import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerBlock:
    """A block of a system prompt or of a tool's result: only text is taken."""

    type: str
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of content; which fields it needs follows from its type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Mapping[str, object] | None = None
    tool_use_id: str | None = None
    content: str | tuple[InnerBlock, ...] | None = None
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicMessage:
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicTool:
    """A tool. Those with a type other than "custom" are run by Anthropic, and ignored here."""

    name: str = ""
    description: str | None = None
    input_schema: Mapping[str, object] | None = None
    strict: bool = False
    type: str = "custom"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicToolChoice:
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """`thinking`. A budget is not enforced."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Range(low=1)] | None = None
    display: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat:
    """`output_config.format`."""

    type: Literal["json_schema"]
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConfig:
    """`output_config`."""

    effort: ReasoningEffort | None = None
    format: OutputFormat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountTokensRequest:
    """A prompt to count."""

    model: str
    messages: tuple[AnthropicMessage, ...]
    system: str | tuple[InnerBlock, ...] | None = None
    tools: tuple[AnthropicTool, ...] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    @property
    def tool_places(self) -> tuple[int, ...]:
        """Where the tools stand that can be called here."""
        return tuple(i for i, tool in enumerate(self.tools or ()) if tool.type == "custom")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest(CountTokensRequest):
    """A chat to continue."""

    max_tokens: Annotated[int, Range(low=1)]
    stream: bool = False
    stop_sequences: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    cache_salt: str | None = None
    chat_template_kwargs: Mapping[str, object] | None = None
