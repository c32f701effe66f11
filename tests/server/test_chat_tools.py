"""Tools and reasoning in chats, over a fake engine: prompts, grammars, answers, streams."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
from tokenizers import AddedToken

from support.chat_models import QWEN_TEMPLATE, R1_TEMPLATE, hermes, qwen, speaking
from support.text import byte_level_backend
from triolet.config import ServerConfig
from triolet.engine.client import PromptOptions
from triolet.grammar.compile import check_grammar
from triolet.request import FinishReason
from triolet.server.api.app import Api
from triolet.testing.fake_engine import FakeEngine, Script
from triolet.testing.http import AsgiClient
from triolet.tokenizer.chat_template import ChatTemplate
from triolet.tokenizer.hf_tokenizer import HFTokenizer

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [WEATHER, CLOCK],
}
PRAGUE = hermes("weather", city="Prague")


@asynccontextmanager
async def client_of(engine: FakeEngine, **settings: object) -> AsyncGenerator[AsgiClient]:
    async with engine:
        yield AsgiClient(Api(engine, ServerConfig(**settings)))  # type: ignore[arg-type]  # any


async def chat(client: AsgiClient, body: object) -> dict[str, Any]:
    reply = await client.post(CHAT, body)
    assert reply.status == 200, reply.body
    choice: dict[str, Any] = reply.json()["choices"][0]
    return choice


async def prompt_text(engine: FakeEngine) -> str:
    request = engine.requests[-1]
    options = request.options["options"]
    assert options is None or isinstance(options, PromptOptions)
    token_ids = await engine.tokenize(request.prompt, options)
    return engine.tokenizer.decode(token_ids, skip_special_tokens=False)


async def test_a_call_comes_as_a_call_and_not_as_text() -> None:
    engine = qwen("Let me ", "look.\n", *PRAGUE, "\n", hermes("clock"))
    async with client_of(engine) as client:
        choice = await chat(client, ASK)
        assert '"name": "weather"' in await prompt_text(engine)
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "Let me look."
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]
    assert calls == [("weather", '{"city": "Prague"}'), ("clock", "{}")]
    ids = [c["id"] for c in message["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(i.startswith("call_") for i in ids)


@pytest.mark.parametrize(
    "pieces",
    [
        ("plain",),
        ("<thi", "nk>hm</thi", "nk>Hi"),
        ("<think>", "\nhm", "\n</think>\n\n", "Hi", " <b> "),
        ("<think>hm</think>", *PRAGUE),
        ("a", *PRAGUE, "b"),
        ("<tool_call>{oops}</tool_call>",),
        (PRAGUE.removesuffix("\n</tool_call>"),),
        ('<tool_call>{"name": "weather", "argu',),
    ],
)
@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
async def test_a_joined_stream_is_the_whole_answer(
    pieces: tuple[str, ...], reason: FinishReason
) -> None:
    engine = qwen(*pieces, finish_reason=reason)
    more = {"logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    async with client_of(engine) as client:
        whole = await chat(client, {**ASK, **more})
        options = {"include_usage": True}
        body = {**ASK, **more, "stream": True, "stream_options": options}
        async with client.stream(CHAT, body) as stream:
            events = [event async for event in stream.events()]
    assert events[-1] == "[DONE]"
    choices = [c for event in events[:-1] for c in json.loads(event)["choices"]]
    joined: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for choice in choices:
        delta = choice["delta"]
        joined["content"] += delta.get("content") or ""
        joined["reasoning"] += delta.get("reasoning", "")
        assert delta.get("reasoning_content") == delta.get("reasoning")
        for call in delta.get("tool_calls", []):
            assert call.pop("index") == len(joined["tool_calls"])
            call.pop("id")
            joined["tool_calls"].append(call)
    message = whole["message"]
    for call in message.get("tool_calls", []):
        call.pop("id")
    assert joined == {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning", ""),
        "tool_calls": message.get("tool_calls", []),
    }
    assert choices[-1]["finish_reason"] == whole["finish_reason"]
    assert [i for c in choices for i in c.get("token_ids", [])] == whole["token_ids"]
    entries = [entry for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]
    assert entries == whole["logprobs"]["content"]


@pytest.mark.parametrize(
    ("choice", "reason", "finish"),
    [
        ("auto", FinishReason.STOP, "tool_calls"),
        ("required", FinishReason.STOP, "tool_calls"),
        ({"type": "function", "function": {"name": "weather"}}, FinishReason.STOP, "stop"),
        ("auto", FinishReason.LENGTH, "length"),
        ("auto", FinishReason.TIMEOUT, "length"),
    ],
)
async def test_finish_reason_with_calls(choice: object, reason: FinishReason, finish: str) -> None:
    async with client_of(qwen(PRAGUE, finish_reason=reason)) as client:
        assert (await chat(client, {**ASK, "tool_choice": choice}))["finish_reason"] == finish


async def test_finish_reason_without_a_call_is_the_engines() -> None:
    async with client_of(qwen("no")) as client:
        assert (await chat(client, ASK))["finish_reason"] == "stop"


async def test_calls_are_left_alone_where_no_tools_were_given() -> None:
    async with client_of(qwen(PRAGUE)) as client:
        message = (await chat(client, {"messages": ASK["messages"]}))["message"]
        assert message["content"] == PRAGUE
        assert "tool_calls" not in message
        message = (await chat(client, {**ASK, "tool_choice": "none"}))["message"]
        assert message["content"] == PRAGUE


async def test_at_most_one_call_without_parallel_calls() -> None:
    async with client_of(qwen(PRAGUE, PRAGUE)) as client:
        choice = await chat(client, {**ASK, "parallel_tool_calls": False})
        assert len(choice["message"]["tool_calls"]) == 1


async def test_forced_calls_get_a_grammar_that_compiles() -> None:
    engine = qwen(PRAGUE)
    named = {"type": "function", "function": {"name": "weather"}}
    async with client_of(engine) as client:
        for choice, has_clock in (("required", True), (named, False)):
            await chat(client, {**ASK, "tool_choice": choice})
            structured = engine.requests[-1].sampling.structured_outputs
            assert structured is not None
            assert structured.grammar is not None
            assert ("clock" in structured.grammar) == has_clock
            check_grammar(structured)
        await chat(client, {**ASK, "tool_choice": "auto"})
        assert engine.requests[-1].sampling.structured_outputs is None


async def test_strict_tools_are_followed_even_if_the_model_chooses_to_call() -> None:
    engine = qwen("Hi")
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]  # JSON
    async with client_of(engine) as client:
        assert (await chat(client, {**ASK, "tools": [strict]}))["message"]["content"] == "Hi"
        structured = engine.requests[-1].sampling.structured_outputs
        assert structured is not None
        check_grammar(structured)


async def test_golden_bytes_of_a_stream_with_reasoning_and_a_call() -> None:
    engine = qwen("<think>hm</think>", "Hi ", PRAGUE)
    async with engine:
        client = AsgiClient(Api(engine, ServerConfig(), clock=lambda: 1700000000.0))
        async with client.stream(CHAT, {**ASK, "stream": True}) as stream:
            text = (await stream.read()).decode()
        answer_id = "chatcmpl-" + stream.headers["x-triolet-request-id"]
    call_id = json.loads(text.split("\n\n")[3].removeprefix("data: "))["choices"][0]["delta"][
        "tool_calls"
    ][0]["id"]
    assert call_id.startswith("call_")
    head = (
        f'data: {{"id":"{answer_id}","object":"chat.completion.chunk","created":1700000000,'
        '"model":"fake-model","choices":[{"index":0,"delta":'
    )
    goes_on = ',"logprobs":null,"finish_reason":null}]}\n\n'
    assert text == (
        f'{head}{{"role":"assistant","content":""}}{goes_on}'
        f'{head}{{"reasoning":"hm","reasoning_content":"hm"}}{goes_on}'
        f'{head}{{"content":"Hi"}}{goes_on}'
        f'{head}{{"tool_calls":[{{"index":0,"id":"{call_id}","type":"function","function":'
        '{"name":"weather","arguments":"{\\"city\\": \\"Prague\\"}"}}]},'
        '"logprobs":null,"finish_reason":"tool_calls","stop_reason":null}]}\n\n'
        "data: [DONE]\n\n"
    )


async def test_structured_answers_leave_room_for_calls_and_reasoning() -> None:
    engine = qwen("{}")
    body = {"messages": ASK["messages"], "response_format": {"type": "json_object"}}
    async with client_of(engine) as client:
        for request in (body, {**body, "tools": ASK["tools"]}):
            await chat(client, request)
            structured = engine.requests[-1].sampling.structured_outputs
            assert structured is not None
            assert "<think>" in (structured.grammar or "")
            assert ("weather" in (structured.grammar or "")) == ("tools" in request)
            check_grammar(structured)


async def test_a_template_without_tools_is_given_them_as_text() -> None:
    engine = FakeEngine()
    history = [
        *ASK["messages"],
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Brno"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": "noon"},
    ]
    async with client_of(engine) as client:
        await chat(client, {**ASK, "messages": history})
        text = await prompt_text(engine)
    assert '"name": "clock"' in text.partition("<|im_end|>")[0]
    assert f"assistant\n{hermes('weather', city='Brno')}<|im_end|>" in text
    responses = (
        "user\n<tool_response>\nrain\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
    )
    assert responses in text


async def test_reasoning_comes_under_both_names_and_is_counted() -> None:
    async with client_of(qwen("<think>", "hm", "</think>", "Hi")) as client:
        reply = (await client.post(CHAT, {"messages": ASK["messages"]})).json()
    message = reply["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "hm"
    assert message["content"] == "Hi"
    tokens = len("<think>hm</think>")  # a token is a byte here
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": tokens}


async def test_reasoning_that_the_prompt_opens() -> None:
    async with client_of(speaking(R1_TEMPLATE, "hm\n</think>\n\nHi")) as client:
        message = (await chat(client, {"messages": ASK["messages"]}))["message"]
        assert (message["reasoning"], message["content"]) == ("hm", "Hi")


async def test_reasoning_can_be_hidden() -> None:
    async with client_of(qwen("<think>hm</think>Hi")) as client:
        body = {
            "messages": ASK["messages"],
            "include_reasoning": False,
            "logprobs": True,
            "return_token_ids": True,
        }
        choice = await chat(client, body)
    assert choice["message"] == {"role": "assistant", "content": "Hi", "refusal": None}
    assert choice["logprobs"] is None
    assert "token_ids" not in choice


async def test_the_operator_can_leave_reasoning_in_the_text() -> None:
    text = "<think>hm</think>Hi"
    async with client_of(qwen(text), reasoning_parser="none") as client:
        assert (await chat(client, {"messages": ASK["messages"]}))["message"]["content"] == text


async def test_effort_switches_thinking_off_where_the_template_can() -> None:
    engine = qwen("Hi")
    async with client_of(engine) as client:
        await chat(client, {"messages": ASK["messages"], "reasoning_effort": "none"})
        assert (await prompt_text(engine)).endswith("<think>\n\n</think>\n\n")
    async with client_of(FakeEngine()) as client:
        reply = await client.post(CHAT, {"messages": ASK["messages"], "reasoning_effort": "low"})
        assert reply.headers["x-triolet-ignored"] == "reasoning_effort"


async def test_the_operator_can_name_the_notation() -> None:
    text = '[TOOL_CALLS][{"name": "clock", "arguments": {}}]'
    engine = speaking(QWEN_TEMPLATE, text)
    async with client_of(engine, tool_call_parser="mistral") as client:
        (call,) = (await chat(client, ASK))["message"]["tool_calls"]
        assert call["function"]["name"] == "clock"
        assert len(call["id"]) == 9


async def test_markers_that_are_special_tokens_stay_in_the_text() -> None:
    """A detokenizer would leave them out, and a grammar cannot spell them."""
    call = '[TOOL_CALLS][{"name": "clock", "arguments": {}}]'
    template = (
        "{{- tools | tojson if tools else '' }}"
        "{%- for m in messages %}{{- m.content }}"
        "{%- if m.tool_calls %}{{- '[TOOL_CALLS]' + m.tool_calls | tojson }}{%- endif %}"
        "{%- endfor %}"
    )
    backend = byte_level_backend()
    backend.add_special_tokens([AddedToken("[TOOL_CALLS]", special=True)])
    engine = FakeEngine(Script(pieces=(call,)))
    engine.tokenizer = HFTokenizer(backend, template=ChatTemplate(template))
    engine.facts = attrs.evolve(engine.facts, vocab_size=engine.tokenizer.vocab_size)
    async with client_of(engine) as client:
        (made,) = (await chat(client, {**ASK, "tool_choice": "required"}))["message"]["tool_calls"]
        assert made["function"]["name"] == "clock"
        sampling = engine.requests[-1].sampling
        assert not sampling.skip_special_tokens
        assert sampling.structured_outputs is not None
        token_id = backend.token_to_id("[TOOL_CALLS]")
        assert f"start: <[{token_id}]>" in (sampling.structured_outputs.grammar or "")
        await chat(client, {"messages": ASK["messages"]})
        assert engine.requests[-1].sampling.skip_special_tokens


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": []}, "tools"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "custom", "function": {"name": "a"}}]}, "tools[0].type"),
        (
            {"tools": [{"function": {"name": "a", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes", "tools": [CLOCK]}, "tool_choice"),
        (
            {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        (
            {
                "tools": [CLOCK],
                "tool_choice": "required",
                "response_format": {"type": "json_object"},
            },
            "tool_choice",
        ),
        ({"reasoning_effort": "lots"}, "reasoning_effort"),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
async def test_faults_name_the_field(body: dict[str, object], param: str) -> None:
    async with client_of(qwen("x")) as client:
        reply = await client.post(CHAT, {"messages": ASK["messages"], **body})
        assert (reply.status, reply.json()["error"]["param"]) == (400, param)
