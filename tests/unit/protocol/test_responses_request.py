"""Requests of /v1/responses: what chat they mean, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest

from triolet.errors import InvalidRequest
from triolet.protocol.chat_request import ChatCompletionRequest, ChatMessage
from triolet.protocol.responses_request import chat_of, parse_responses_request

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None}


def chat(*earlier: ChatMessage, **fields: Any) -> ChatCompletionRequest:  # noqa: ANN401  JSON
    request, _ = parse_responses_request({"input": "hi", **fields})
    return chat_of(request, earlier)


def test_a_text_is_a_users_message() -> None:
    assert chat().template_messages == ({"role": "user", "content": "hi"},)


def test_items_become_messages() -> None:
    got = chat(
        instructions="Be",
        input=[
            {"role": "developer", "content": [{"type": "input_text", "text": "kind"}]},
            {"type": "message", "role": "user", "content": "a"},
            {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": None},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "b", "annotations": []}],
            },
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"x": 1}'},
            {"type": "function_call", "call_id": "2", "name": "g", "arguments": ""},
            {"type": "function_call_output", "call_id": "1", "output": "one"},
            {
                "type": "function_call_output",
                "call_id": "2",
                "output": [{"type": "input_text", "text": "two"}],
            },
        ],
    ).template_messages
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
        {"id": "2", "type": "function", "function": {"name": "g", "arguments": {}}},
    ]
    assert got == (
        {"role": "system", "content": "Be\n\nkind"},
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "b",
            "reasoning": "hm",
            "reasoning_content": "hm",
            "tool_calls": calls,
        },
        {"role": "tool", "content": "one", "tool_call_id": "1"},
        {"role": "tool", "content": "two", "tool_call_id": "2"},
    )


def test_a_conversation_goes_on_under_new_instructions() -> None:
    earlier = (
        ChatMessage(role="user", content="a"),
        ChatMessage(role="assistant", content="b"),
    )
    texts = [m["content"] for m in chat(*earlier, instructions="New").template_messages]
    assert texts == ["New", "a", "b", "hi"]


def test_fields_become_fields_of_a_chat() -> None:
    schema = {"type": "object"}
    got = chat(
        max_output_tokens=7,
        tools=[TOOL],
        tool_choice={"type": "function", "name": "f"},
        reasoning={"effort": "low", "summary": "auto"},
    )
    assert (got.max_completion_tokens, got.reasoning_effort) == (7, "low")
    assert (got.tool_use.only, got.tool_use.must_call) == ("f", True)
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    got = chat(text={"format": form, "verbosity": "medium"})
    assert got.response_format is not None
    assert got.response_format.json_schema is not None
    assert got.response_format.json_schema.schema == schema
    assert got.response_format.json_schema.strict


def test_tools_that_are_no_functions_are_ignored_and_reported() -> None:
    request, ignored = parse_responses_request(
        {
            "input": "hi",
            "tools": [
                TOOL,
                {"type": "web_search"},
                {"type": "namespace", "name": "n", "tools": []},
                {"type": "custom", "name": "c", "format": {"type": "text"}},
            ],
            "tool_choice": "auto",
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "k",
            "client_metadata": {},
            "store": False,
            "shape": 1,
        }
    )
    assert ignored == ("shape", "tools.custom", "tools.namespace", "tools.web_search")
    assert [function.name for function in request.functions] == ["f"]
    assert chat(tools=[{"type": "web_search"}], tool_choice="auto").tools is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "function_call", "call_id": "1"}]}, "input[0].name"),
        ({"input": [{"type": "function_call_output", "output": ""}]}, "input[0].call_id"),
        ({"tools": [{"type": "web_search"}, {"type": "function", "name": "a b"}]}, "tools[1].name"),
        ({"tools": [{**TOOL, "parameters": {"type": "array"}}]}, "tools[0].parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"background": True, "store": False}, "background"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"conversation": "c"}, "conversation"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_faults_name_the_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as fault:
        parse_responses_request({"input": "hi", **fields})
    assert fault.value.param == param
