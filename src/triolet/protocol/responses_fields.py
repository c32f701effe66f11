"""Fields of POST /v1/responses, as OpenAI's and vLLM's clients send them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from triolet.protocol.chat_request import ReasoningEffort
from triolet.protocol.fields import Range
from triolet.protocol.generation_request import DEADLINE_MS_MAX, StructuredOutputsField
from triolet.protocol.tools import FunctionSpec, ToolChoiceMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of an item's content. Only text is taken."""

    type: str
    text: str | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputItem:
    """An item of `input`; which fields it needs follows from its type."""

    type: str = "message"
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | tuple[Part, ...] | None = None
    summary: tuple[Part, ...] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | tuple[Part, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTool:
    """A tool. Only functions are called; others are for the provider to run, and ignored."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Mapping[str, object] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionChoice:
    """`tool_choice` that names one function."""

    type: Literal["function"]
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat:
    """`text.format`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: Mapping[str, object] | None = None
    description: str | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """`text`."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningConfig:
    """`reasoning`. There are no summaries: the reasoning itself is in the output."""

    effort: ReasoningEffort | None = None
    summary: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """A response to make."""

    input: str | tuple[InputItem, ...]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Range(low=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | tuple[str, ...] = ()
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[str, float] | None = None
    ignore_eos: bool = False
    tools: tuple[ResponseTool, ...] | None = None
    tool_choice: ToolChoiceMode | FunctionChoice | None = None
    parallel_tool_calls: bool = True
    text: TextConfig | None = None
    structured_outputs: StructuredOutputsField | None = None
    reasoning: ReasoningConfig | None = None
    include: tuple[str, ...] | None = None
    include_reasoning: bool = True
    store: bool = True
    stream: bool = False
    background: bool = False
    previous_response_id: str | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    metadata: Mapping[str, object] | None = None
    user: str | None = None
    priority: Annotated[int, Range(-(2**31), 2**31 - 1)] = 0
    cache_salt: str | None = None
    deadline_ms: Annotated[int, Range(1, DEADLINE_MS_MAX)] | None = None
    chat_template_kwargs: Mapping[str, object] | None = None

    @property
    def tool_places(self) -> tuple[int, ...]:
        """Where the functions stand among the tools."""
        return tuple(i for i, tool in enumerate(self.tools or ()) if tool.type == "function")

    @property
    def functions(self) -> tuple[FunctionSpec, ...]:
        """The tools that may be called."""
        return tuple(
            FunctionSpec(
                name=tool.name or "",
                description=tool.description,
                parameters=tool.parameters,
                strict=tool.strict,
            )
            for tool in self.tools or ()
            if tool.type == "function"
        )

    @property
    def items(self) -> tuple[InputItem, ...]:
        """The input as items."""
        if isinstance(self.input, str):
            return (InputItem(role="user", content=self.input),)
        return self.input
