"""Tools in the prompt of a model whose template knows none: Hermes' notation, as text.

Source: the function-calling format of NousResearch's Hermes models, which Qwen's templates
use too. What the template would not write is put into plain messages: the tools into the
system message, earlier calls into the assistant's text, results into the user's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from triolet.protocol.tools import FunctionSpec, template_tool

_INTRODUCTION = """\
You may call functions to answer. Their signatures, one JSON object per line:
<tools>
{tools}
</tools>
To call one, write nothing but its name and arguments as a JSON object in <tool_call> tags:
<tool_call>
{{"name": "function-name", "arguments": {{"argument": "value"}}}}
</tool_call>
The result then comes in <tool_response> tags."""

TemplateMessages = tuple[dict[str, object], ...]


def with_tools_stated(
    messages: Sequence[Mapping[str, object]], tools: Sequence[FunctionSpec]
) -> TemplateMessages:
    """The chat with its tools in the system message."""
    if not tools:
        return tuple(map(dict, messages))
    signatures = (json.dumps(template_tool(tool), ensure_ascii=False) for tool in tools)
    text = _INTRODUCTION.format(tools="\n".join(signatures))
    first, rest = dict(messages[0]), messages[1:]
    if first.get("role") in ("system", "developer"):
        content = str(first.get("content") or "")
        first["content"] = f"{content}\n\n{text}" if content else text
        return (first, *map(dict, rest))
    return ({"role": "system", "content": text}, *map(dict, messages))


def with_calls_written(messages: Sequence[Mapping[str, object]]) -> TemplateMessages:
    """The chat with calls and their results as text; results in a row become one message."""
    out: list[dict[str, object]] = []
    results: list[str] = []
    for message in messages:
        if message.get("role") == "tool":
            results.append(f"<tool_response>\n{message.get('content') or ''}\n</tool_response>")
            continue
        out += _results_written(results)
        results = []
        out.append(_call_written(dict(message)))
    return (*out, *_results_written(results))


def _results_written(results: list[str]) -> list[dict[str, object]]:
    return [{"role": "user", "content": "\n".join(results)}] if results else []


def _call_written(message: dict[str, object]) -> dict[str, object]:
    calls = cast("Sequence[Mapping[str, Any]]", message.pop("tool_calls", ()))
    texts = [str(message.get("content") or "")] if message.get("content") else []
    for call in calls:
        function = call["function"]
        fields = {"name": function["name"], "arguments": function["arguments"]}
        texts.append(f"<tool_call>\n{json.dumps(fields, ensure_ascii=False)}\n</tool_call>")
    if calls:
        message["content"] = "\n".join(texts)
    return message
