"""A model's notation, found in what its template writes; each template is a family's, shortened."""

from __future__ import annotations

from typing import get_args

import pytest

from support.chat_models import QWEN_TEMPLATE, R1_TEMPLATE
from triolet.config import ReasoningParser, ServerConfig, ToolCallParser
from triolet.errors import ConfigError
from triolet.protocol.parsers.dialect import MARKS, Dialect
from triolet.protocol.parsers.formats import FORMATS
from triolet.protocol.parsers.output_parser import ReasoningMarks
from triolet.protocol.tool_grammar import quoted
from triolet.server.api.dialect import OPEN_FROM_THE_START, model_dialect
from triolet.tokenizer.byte_tokenizer import CHATML_TEMPLATE, ByteTokenizer

THINK = ReasoningMarks("<think>", "</think>")

LLAMA = """\
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
    {%- if loop.first and tools %}
        {{- 'Respond with {"name": function name, "parameters": dictionary}.\\n' }}
        {%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
    {%- endif %}
    {%- if message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
    {%- else %}{{- message.content }}{%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
"""
MISTRAL = """\
{%- if tools %}{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '[INST] ' + message.content + '[/INST]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('nine characters') }}{%- endif %}
            {{- call.function | tojson }}
        {%- endfor %}
        {{- ']' }}
    {%- else %}{{- message.content }}{%- endif %}
{%- endfor %}
"""
GEMMA = """\
{%- for tool in tools or [] %}
    {{- '<start_function_declaration>declaration:' + tool.function.name }}
    {{- '<end_function_declaration>' }}
{%- endfor %}
{%- for message in messages %}
    {{- '<start_of_turn>' + message.role + '\\n' }}
    {%- for call in message.tool_calls or [] %}
        {{- '<start_function_call>call:' + call.function.name + '{}<end_function_call>' }}
    {%- endfor %}
    {{- message.content or '' }}
{%- endfor %}
"""
CODER = QWEN_TEMPLATE.replace(
    """{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}""",
    """{{- '\\n<tool_call>\\n<function=' + call.function.name + '>' }}""",
)
EFFORT = CHATML_TEMPLATE + "{{- 'Reasoning: ' + (reasoning_effort or 'medium') }}"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML_TEMPLATE, Dialect()),
        (EFFORT, Dialect(has_effort_switch=True)),
        (
            QWEN_TEMPLATE,
            Dialect("hermes", True, True, THINK, has_thinking_switch=True),
        ),
        (
            CODER,
            Dialect("qwen3_coder", True, True, THINK, has_thinking_switch=True),
        ),
        (R1_TEMPLATE, Dialect(reasoning=THINK)),
        (LLAMA, Dialect("llama3_json", states_tools=True, writes_calls=True)),
        (MISTRAL, Dialect("mistral", states_tools=True, writes_calls=True)),
        (GEMMA, Dialect("functiongemma", states_tools=True, writes_calls=True)),
    ],
    ids=["chatml", "effort", "qwen", "coder", "r1", "llama", "mistral", "gemma"],
)
def test_dialects_of_known_templates(template: str, expected: Dialect) -> None:
    assert model_dialect(ByteTokenizer(template), ServerConfig()).dialect == expected


def test_a_model_without_a_template_gets_the_defaults() -> None:
    assert model_dialect(ByteTokenizer(None), ServerConfig()).dialect == Dialect()


def test_the_operator_has_the_last_word() -> None:
    config = ServerConfig(tool_call_parser="mistral", reasoning_parser="none")
    found = model_dialect(ByteTokenizer(QWEN_TEMPLATE), config)
    assert (found.dialect.call_format, found.dialect.reasoning) == ("mistral", None)
    opening = model_dialect(ByteTokenizer(), ServerConfig(reasoning_parser="deepseek_r1"))
    assert opening.dialect.reasoning == THINK


@pytest.mark.parametrize(
    ("parser", "prompt", "is_open"),
    [
        ("auto", "<|im_start|>assistant\n", False),
        ("auto", "assistant\n<think>\n", True),
        ("auto", "assistant\n<think>\n\n</think>\n\n", False),
        ("deepseek_r1", "assistant\n", True),
        ("deepseek_r1", "assistant\n<think>\n\n</think>\n\n", False),
        ("none", "assistant\n<think>\n", False),
    ],
)
def test_whether_a_prompt_ends_inside_of_reasoning(
    parser: ReasoningParser, prompt: str, is_open: bool
) -> None:
    tokenizer = ByteTokenizer(QWEN_TEMPLATE)
    dialect = model_dialect(tokenizer, ServerConfig(reasoning_parser=parser))
    assert dialect.reasoning_open(tokenizer, tuple(tokenizer.encode(prompt))) is is_open


def test_markers_that_are_tokens_are_named_by_their_id() -> None:
    plain = model_dialect(ByteTokenizer(QWEN_TEMPLATE), ServerConfig())
    assert plain.marker("<think>") == quoted("<think>")


def test_the_settings_name_the_parsers_that_there_are() -> None:
    assert set(get_args(ToolCallParser)) == {"auto", *FORMATS}
    assert set(get_args(ReasoningParser)) == {"auto", "none", *MARKS, OPEN_FROM_THE_START}
    with pytest.raises(ConfigError, match="tool_call_parser"):
        ServerConfig(tool_call_parser="xml").check()  # type: ignore[arg-type]  # that is the fault
