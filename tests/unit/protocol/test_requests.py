"""Chat and completion requests: every class of field, and what becomes of it."""

from __future__ import annotations

import pytest

from triolet.errors import InvalidRequest
from triolet.protocol.chat_request import parse_chat_request
from triolet.protocol.completion_request import parse_completion_request
from triolet.protocol.fields import (
    CHAT_NOT_BUILT,
    COMPLETION_NOT_BUILT,
    IGNORED_NAMES_MAX,
    ignored_header,
)

HELLO = {"role": "user", "content": "hello"}
ANY_VALUES = ({"a": 1}, ["x"], "x", 7, True, False)


def chat(**fields: object) -> dict[str, object]:
    return {"messages": [HELLO], **fields}


@pytest.mark.parametrize("name", sorted(CHAT_NOT_BUILT))
def test_chat_field_that_is_not_built_is_refused_by_name(name: str) -> None:
    for value in ANY_VALUES:
        if value in CHAT_NOT_BUILT[name].neutral:
            continue
        with pytest.raises(InvalidRequest) as caught:
            parse_chat_request(chat(**{name: value}))
        assert caught.value.param == name
        assert caught.value.code == "unsupported_parameter"


@pytest.mark.parametrize("name", sorted(COMPLETION_NOT_BUILT))
def test_completion_field_that_is_not_built_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_completion_request({"prompt": "x", name: {"a": 1}})
    assert caught.value.param == name


@pytest.mark.parametrize("name", sorted(CHAT_NOT_BUILT))
def test_field_that_is_not_built_may_ask_for_nothing(name: str) -> None:
    for neutral in (None, *CHAT_NOT_BUILT[name].neutral):
        _, ignored = parse_chat_request(chat(**{name: neutral}))
        assert ignored == ()


def test_unknown_fields_are_reported_in_order_and_known_ones_are_not() -> None:
    _, ignored = parse_chat_request(chat(zeta=1, store=False, user="u", alpha=None, temperature=1))
    assert ignored == ("zeta", "alpha")


def test_ignored_header_is_bounded_and_printable() -> None:
    names = tuple(f"name\r\n{i}é" * 30 for i in range(500))
    header = ignored_header(names)
    assert header.isascii()
    assert header.isprintable()
    assert len(header) < 1024
    assert header.endswith(f"and {500 - IGNORED_NAMES_MAX} more")
    assert ignored_header(("seed_", "top-p")) == "seed_, top-p"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [HELLO, {"role": "user", "content": 5}]}, "messages[1].content"),
        (
            {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        (chat(top_logprobs=3), "top_logprobs"),
        (chat(continue_final_message=True), "continue_final_message"),
        (chat(chat_template_kwargs={"x": [1]}), "chat_template_kwargs.x"),
        (
            chat(chat_template_kwargs={"chat_template": "{% x %}"}),
            "chat_template_kwargs.chat_template",
        ),
        (chat(chat_template_kwargs={"x": "y" * 300}), "chat_template_kwargs.x"),
        (chat(chat_template_kwargs={str(i): i for i in range(40)}), "chat_template_kwargs"),
        (chat(deadline_ms=0), "deadline_ms"),
        (chat(stream="true"), "stream"),
    ],
)
def test_faulty_chat_is_refused_at_its_field(body: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat_request(body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": ["x"] * 1025}, "prompt"),
        ({"prompt": ["x"] * 1024, "n": 2}, "n"),
        ({"prompt": [1, -1]}, "prompt[1]"),
        ({"prompt": [[1], [2**40]]}, "prompt[1][0]"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "logprobs": True}, "logprobs"),
    ],
)
def test_faulty_completion_is_refused_at_its_field(body: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_completion_request(body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("ab", ("ab",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_every_form_of_prompt_is_a_list_of_prompts(prompt: object, prompts: object) -> None:
    assert parse_completion_request({"prompt": prompt})[0].prompts == prompts


def test_messages_reach_the_template_as_text_with_their_calls_parsed() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    broken = {"id": "c2", "type": "function", "function": {"name": "f", "arguments": '{"a'}}
    request, _ = parse_chat_request(
        {
            "messages": [
                {
                    "role": "developer",
                    "content": [{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}],
                },
                {"role": "assistant", "content": None, "tool_calls": [call, broken]},
                {"role": "tool", "content": "1", "tool_call_id": "c1"},
                {"role": "assistant", "content": "", "reasoning_content": "hm"},
            ]
        }
    )
    developer, assistant, tool, last = request.template_messages
    assert developer == {"role": "developer", "content": "be\nkind"}
    assert assistant["content"] == ""
    calls = assistant["tool_calls"]
    assert isinstance(calls, list)
    assert [c["function"]["arguments"] for c in calls] == [{"a": 1}, '{"a']
    assert tool == {"role": "tool", "content": "1", "tool_call_id": "c1"}
    assert last["reasoning"] == last["reasoning_content"] == "hm"
