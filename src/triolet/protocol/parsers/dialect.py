"""Which family's notation a model uses: found out by what its chat template writes.

The server renders `PROBES` with the model's template and hands the texts to `dialect_of`. A
template is the model's own statement of its notation, so no list of model names is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from triolet.protocol.parsers.output_parser import ReasoningMarks

WORD = "probe7f2c"
"""A word that no template has of its own."""

MARKS: Mapping[str, ReasoningMarks] = {
    "think": ReasoningMarks("<think>", "</think>"),
    "mistral": ReasoningMarks("[THINK]", "[/THINK]"),
}
"""Reasoning parsers by name."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One rendering of a template, and what to look for in it.

    Attributes:
        messages: The chat.
        tools: With the probe's tool.
        template_kwargs: Switches.
    """

    messages: tuple[Mapping[str, object], ...]
    tools: bool = False
    template_kwargs: Mapping[str, object] | None = None


TOOL: Mapping[str, object] = {
    "type": "function",
    "function": {
        "name": WORD,
        "description": WORD,
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    },
}
_USER: Mapping[str, object] = {"role": "user", "content": "hi"}
_CALL: Mapping[str, object] = {
    "id": "call00000",
    "type": "function",
    "function": {"name": WORD, "arguments": {"a": "b"}},
}
_CALLING: Mapping[str, object] = {"role": "assistant", "content": "", "tool_calls": [_CALL]}


def _thinking(marks: ReasoningMarks) -> Mapping[str, object]:
    return {"role": "assistant", "content": f"{marks.begin}\n{WORD}\n{marks.end}\n\nanswer"}


PROBES: Mapping[str, Probe] = {
    "plain": Probe((_USER,)),
    "tools": Probe((_USER,), tools=True),
    "call": Probe((_USER, _CALLING), tools=True),
    "reasoning": Probe((_USER, {"role": "assistant", "content": "x", "reasoning_content": WORD})),
    "think": Probe((_USER, _thinking(MARKS["think"]), _USER)),
    "thinking_on": Probe((_USER,), template_kwargs={"enable_thinking": True}),
    "thinking_off": Probe((_USER,), template_kwargs={"enable_thinking": False}),
    "effort_low": Probe((_USER,), template_kwargs={"reasoning_effort": "low"}),
    "effort_high": Probe((_USER,), template_kwargs={"reasoning_effort": "high"}),
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a model speaks.

    Attributes:
        call_format: Name in `formats.FORMATS`.
        states_tools: The template tells the model its tools; else triolet does.
        writes_calls: The template writes earlier calls; else triolet does.
        reasoning: Marks of its reasoning, None if it does not reason.
        has_thinking_switch: The template has the variable `enable_thinking`.
        has_effort_switch: The template has the variable `reasoning_effort`.
    """

    call_format: str = "hermes"
    states_tools: bool = False
    writes_calls: bool = False
    reasoning: ReasoningMarks | None = None
    has_thinking_switch: bool = False
    has_effort_switch: bool = False


def dialect_of(rendered: Mapping[str, str]) -> Dialect:
    """The dialect of a model.

    Args:
        rendered: The text of each of `PROBES`, "" where the template refuses it.
    """
    call = rendered["call"]
    found = call_format_of(rendered["tools"], call)
    return Dialect(
        call_format=found or "hermes",
        # A template that states tools in an unknown notation is taken at its word: it is
        # asked for calls in Hermes' notation, which is JSON.
        states_tools=WORD in rendered["tools"] and found is not None,
        writes_calls=found is not None and call.count(WORD) > rendered["tools"].count(WORD),
        reasoning=_reasoning_of(rendered),
        has_thinking_switch=rendered["thinking_on"] != rendered["thinking_off"],
        has_effort_switch=rendered["effort_low"] != rendered["effort_high"],
    )


def call_format_of(tools: str, call: str) -> str | None:
    """Name of the notation in a chat with tools, or with a call; None for an unknown one."""
    text = call or tools
    if "<start_function_call>" in text:
        return "functiongemma"
    if "[TOOL_CALLS]" in text:
        return "mistral"
    if "<tool_call>" in text:
        return "qwen3_coder" if "<function=" in text else "hermes"
    if "<|python_tag|>" in text or f'{{"name": "{WORD}", "parameters"' in text:
        return "llama3_json"
    return None


def _reasoning_of(rendered: Mapping[str, str]) -> ReasoningMarks | None:
    for marks in MARKS.values():
        if marks.begin in rendered["reasoning"] or marks.begin in rendered["plain"]:
            return marks
    # Templates of reasoning models leave earlier thoughts out of the prompt.
    left_out = rendered["think"] != "" and WORD not in rendered["think"]
    return MARKS["think"] if left_out else None
