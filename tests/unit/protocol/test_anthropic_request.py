"""Requests of /v1/messages: what chat they mean, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from triolet.errors import InvalidRequest
from triolet.protocol.anthropic_request import (
    parse_count_tokens_request,
    parse_messages_request,
)
from triolet.protocol.chat_request import ChatCompletionRequest

HELLO: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hi"}],
}
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}}


def chat(**fields: object) -> ChatCompletionRequest:
    return parse_messages_request({**HELLO, **fields})[1]


def test_blocks_become_messages() -> None:
    got = chat(
        system=[{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}],
        tools=[TOOL],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "unsigned"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "b"},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": [1]}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "r"}],
                    },
                    {"type": "tool_result", "tool_use_id": "t2", "content": "s", "is_error": True},
                    {"type": "text", "text": "c"},
                ],
            },
        ],
    ).template_messages
    assert got == (
        {"role": "system", "content": "Be"},
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "b",
            "reasoning": "hm",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": [1]}}}
            ],
        },
        {"role": "tool", "content": "r", "tool_call_id": "t1"},
        {"role": "tool", "content": "Error: s", "tool_call_id": "t2"},
        {"role": "user", "content": "c"},
    )


def test_fields_become_fields_of_a_chat() -> None:
    got = chat(
        stop_sequences=["x"],
        temperature=0.5,
        top_k=3,
        stream=True,
        thinking={"type": "disabled"},
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
    )
    assert (got.max_tokens, got.stop, got.temperature, got.top_k) == (9, ("x",), 0.5, 3)
    assert (got.stream, got.include_reasoning, got.reasoning_effort) == (True, False, "none")
    assert got.response_format is not None
    assert got.response_format.json_schema is not None
    assert got.response_format.json_schema.schema == {"type": "object"}
    assert chat(
        thinking={"type": "adaptive"}, output_config={"effort": "low"}
    ).reasoning_effort == ("low")
    assert chat(thinking={"type": "enabled", "budget_tokens": 1024}).reasoning_effort == "high"


def test_an_assistants_turn_at_the_end_is_continued() -> None:
    got = chat(messages=[*HELLO["messages"], {"role": "assistant", "content": "Once"}])
    assert (got.add_generation_prompt, got.continue_final_message) == (False, True)


@pytest.mark.parametrize(
    ("choice", "must_call", "only", "parallel"),
    [
        (None, False, None, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, False, None, False),
        ({"type": "any"}, True, None, True),
        ({"type": "tool", "name": "f"}, True, "f", False),
    ],
)
def test_tool_choices(choice: object, must_call: bool, only: str | None, parallel: bool) -> None:
    use = chat(tools=[TOOL], tool_choice=choice).tool_use
    assert (use.must_call, use.only, use.parallel) == (must_call, only, parallel)
    assert not chat(tools=[TOOL], tool_choice={"type": "none"}).tool_use.tools


def test_what_has_no_effect_is_reported() -> None:
    _, got, ignored = parse_messages_request(
        {
            **HELLO,
            "tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}],
            "thinking": {"type": "enabled", "budget_tokens": 2000},
            "metadata": {"user_id": "u"},
            "colour": "red",
        }
    )
    assert ignored == ("colour", "tools.web_search_20250305", "thinking.budget_tokens")
    assert [tool.name for tool in got.tool_use.tools] == ["f"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"model": 1}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "x"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}, {"name": "a b"}]}, "tools[1].name"),
        ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
    ],
)
def test_faults_name_the_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as fault:
        parse_messages_request({**HELLO, **fields})
    assert fault.value.param == param


def test_counting_needs_no_max_tokens() -> None:
    body = {"model": "m", "messages": HELLO["messages"], "system": "Be"}
    assert len(parse_count_tokens_request(body).messages) == 2
