"""Tools of a request: functions the model may call, and which of them it must."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from triolet.errors import InvalidRequest
from triolet.protocol.json_body import clip

TOOLS_MAX = 128
"""As many as OpenAI takes."""
TOOL_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")

_TOOL_FIELD = re.compile(r"tools\[(?P<index>\d+)\]\.function\.(?P<field>\w+)")

ToolChoiceMode = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSpec:
    """A function that a model may call.

    Attributes:
        name: What the model calls.
        description: What it does, for the model.
        parameters: JSON schema of its arguments; None takes none.
        strict: Refuse the schema if part of it cannot be enforced.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, object] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """An entry of `tools`."""

    function: FunctionSpec
    type: Literal["function"] = "function"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFunction:
    """The function of a named `tool_choice`."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedToolChoice:
    """`tool_choice` that names one function."""

    function: NamedFunction
    type: Literal["function"] = "function"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which tools a request has and what the model may do with them.

    Attributes:
        tools: Those the model sees; none with the choice "none".
        must_call: The answer is a call and nothing else.
        only: The function that the client named, if it did.
        parallel: An answer may hold several calls.
    """

    tools: tuple[FunctionSpec, ...] = ()
    must_call: bool = False
    only: str | None = None
    parallel: bool = True

    @property
    def callable_tools(self) -> tuple[FunctionSpec, ...]:
        """Functions that may be called."""
        return tuple(tool for tool in self.tools if self.only in (None, tool.name))

    @property
    def is_strict(self) -> bool:
        """Whether a call must follow its schema even if the model chooses to call."""
        return any(tool.strict for tool in self.tools)

    @property
    def schemas(self) -> Mapping[str, Mapping[str, object]]:
        """Name -> JSON schema of the parameters."""
        return {tool.name: parameters_of(tool) for tool in self.tools}

    @property
    def for_template(self) -> tuple[dict[str, object], ...] | None:
        """As chat templates take them; None without tools."""
        return tuple(map(template_tool, self.tools)) or None


NO_TOOLS = ToolUse()


def tool_use(
    tools: Sequence[Tool] | None,
    choice: ToolChoiceMode | NamedToolChoice | None,
    *,
    parallel: bool,
) -> ToolUse:
    """Check tools and choice against each other.

    With the choice "none" the model does not see the tools either, so that it cannot call one
    in its text. With a named function it sees all of them.

    Raises:
        InvalidRequest: They do not fit.
    """
    if tools is None or choice == "none":
        if tools is None and choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice needs tools", param="tool_choice")
        return NO_TOOLS
    _check_tools(tools)
    functions = tuple(tool.function for tool in tools)
    if isinstance(choice, NamedToolChoice):
        name = choice.function.name
        if all(function.name != name for function in functions):
            names = ", ".join(function.name for function in functions[:8])
            raise InvalidRequest(
                f"tool_choice names {clip(name)}, which is not in tools ({names})",
                param="tool_choice",
            )
        return ToolUse(functions, must_call=True, only=name, parallel=False)
    return ToolUse(functions, must_call=choice == "required", parallel=parallel)


def parameters_of(tool: FunctionSpec) -> Mapping[str, object]:
    """JSON schema of a tool's arguments: always of an object."""
    if not tool.parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return tool.parameters if "type" in tool.parameters else {"type": "object", **tool.parameters}


def template_tool(tool: FunctionSpec) -> dict[str, object]:
    """A tool as chat templates take it: OpenAI's form, `strict` left out."""
    function: dict[str, object] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = dict(parameters_of(tool))
    return {"type": "function", "function": function}


@contextmanager
def flat_tools(parameters: str, places: Sequence[int]) -> Generator[None]:
    """Name a tool's fields as protocols do that have no `function` around them.

    Args:
        parameters: Their name of the schema of the arguments.
        places: Where the functions stand among the tools that the client sent.
    """
    try:
        yield
    except InvalidRequest as error:
        found = _TOOL_FIELD.match(error.param or "")
        if found is not None and error.param is not None:
            field = parameters if found["field"] == "parameters" else found["field"]
            flat = f"tools[{places[int(found['index'])]}].{field}"
            error.message = error.message.replace(error.param, flat)
            error.param = flat
        raise


def _check_tools(tools: Sequence[Tool]) -> None:
    if not 0 < len(tools) <= TOOLS_MAX:
        raise InvalidRequest(
            f"tools must hold 1..{TOOLS_MAX} tools, got {len(tools)}; leave it out for none",
            param="tools",
        )
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        name = tool.function.name
        param = f"tools[{i}].function.name"
        if TOOL_NAME.fullmatch(name) is None:
            raise InvalidRequest(
                f"{param} must be 1..128 characters of A-Z a-z 0-9 _ . -, got {clip(name)}",
                param=param,
            )
        if name in seen:
            raise InvalidRequest(f"{param}: the name {clip(name)} is there twice", param=param)
        seen.add(name)
        kind = parameters_of(tool.function).get("type")
        if kind != "object":
            param = f"tools[{i}].function.parameters"
            raise InvalidRequest(
                f"{param} must be the schema of an object, got type {clip(json.dumps(kind))}",
                param=param,
            )
