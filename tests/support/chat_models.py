"""Fake engines whose chat templates speak as known families do."""

from __future__ import annotations

import json
from typing import Any

from triolet.testing.fake_engine import FakeEngine, Gate, Script
from triolet.tokenizer.byte_tokenizer import ByteTokenizer

QWEN_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}
    {{- '\\n</tools>\\nWrite <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.reasoning_content and loop.last %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
"""Qwen3's notation, shortened."""

R1_TEMPLATE = """\
{%- for message in messages %}
    {%- set content = message.content.split('</think>')[-1] %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}
"""
"""DeepSeek R1's: the prompt opens the reasoning, earlier reasoning is left out."""


def hermes(name: str, **arguments: object) -> str:
    """A call in Hermes' notation."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def qwen(*pieces: str, gate: Gate | None = None, **script: Any) -> FakeEngine:  # noqa: ANN401
    """An engine that speaks Qwen3."""
    return speaking(QWEN_TEMPLATE, *pieces, gate=gate, **script)


def speaking(
    template: str,
    *pieces: str,
    gate: Gate | None = None,
    **script: Any,  # noqa: ANN401  any field of a script
) -> FakeEngine:
    """An engine with a template and a scripted answer."""
    engine = FakeEngine(Script(pieces=pieces, **script) if pieces else None, gate=gate)
    engine.tokenizer = ByteTokenizer(template)
    return engine
