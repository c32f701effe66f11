"""Every answer and chunk of chats and completions is what the openai client's types say.

The client's own models are generated from OpenAI's published OpenAPI document. What they do
not know is one of vLLM's extensions, by name, and nothing else.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import BaseModel
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from triolet.server.api.app import Api
from triolet.testing.fake_engine import FakeEngine, Script
from triolet.testing.http import AsgiClient

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": [1, {"b": "c"}]}}\n</tool_call>'

EXTENSIONS = {
    "stop_reason",
    "token_ids",
    "prompt_token_ids",
    "prompt_logprobs",
    "reasoning",
    "reasoning_content",
}

CHAT_OPTIONS: list[dict[str, Any]] = [
    {},
    {"n": 3},
    {"logprobs": True},
    {"logprobs": True, "top_logprobs": 5, "n": 2},
    {"return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": True},
    {"max_tokens": 1},
    {"stop": ["world"], "max_completion_tokens": 3},
    {"response_format": {"type": "json_object"}},
    {"tools": [TOOL]},
    {"tools": [TOOL], "tool_choice": "none"},
    {"tools": [TOOL, {**TOOL, "function": {"name": "g"}}], "tool_choice": "required"},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    {"stream_options": {"include_usage": True}, "logprobs": True, "n": 2},
]
COMPLETION_OPTIONS: list[dict[str, Any]] = [
    {},
    {"prompt": ["a", "b"], "n": 2},
    {"prompt": [[104, 105], [106]]},
    {"logprobs": 0},
    {"logprobs": 5, "echo": True, "n": 2},
    {"logprobs": 1, "echo": True, "max_tokens": 0, "prompt": [104, 105]},
    {"return_token_ids": True, "stop": "w"},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "n": 2},
]
CASES = [
    *itertools.product(
        [CHAT], CHAT_OPTIONS, ["Hello, world!", "日本語 😀", CALL, f"I will. {CALL}"]
    ),
    *itertools.product([COMPLETIONS], COMPLETION_OPTIONS, ["Hello, world!", "日本語 😀"]),
]


def extensions(model: BaseModel) -> Iterator[str]:
    """Names of fields that the client's types do not know, at any depth."""
    yield from model.model_extra or {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, BaseModel):
                yield from extensions(item)


def check(cls: type[BaseModel], value: Any) -> None:  # noqa: ANN401  parsed JSON
    model = cls.model_validate(value, strict=True)
    assert set(extensions(model)) <= EXTENSIONS


def as_typed(path: str, value: Any) -> Any:  # noqa: ANN401  parsed JSON
    """Without the nulls that OpenAI's service sends and the client's types leave out.

    A completion chunk has no finish reason before the last one, and the first token of an
    echoed prompt has no logprob.
    """
    for choice in value["choices"] if path == COMPLETIONS else ():
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        logprobs = choice["logprobs"]
        if logprobs and logprobs["token_logprobs"][:1] == [None]:
            assert logprobs["text_offset"][0] == 0
            assert logprobs["top_logprobs"][0] is None
            logprobs["token_logprobs"][0], logprobs["top_logprobs"][0] = 0.0, {}
    return value


def body_of(path: str, options: dict[str, Any]) -> dict[str, Any]:
    if path == CHAT:
        return {"messages": [{"role": "user", "content": "hi"}], **options}
    return {"prompt": "hi", **options}


def pieces(text: str) -> tuple[str, ...]:
    return tuple(text[i : i + 3] for i in range(0, len(text), 3))


@pytest.mark.parametrize(("path", "options", "text"), CASES)
async def test_answers_are_what_the_clients_types_say(
    path: str, options: dict[str, Any], text: str
) -> None:
    whole_class = ChatCompletion if path == CHAT else Completion
    chunk_class = ChatCompletionChunk if path == CHAT else Completion
    async with FakeEngine(Script(pieces=pieces(text))) as engine:
        client = AsgiClient(Api(engine))
        body = body_of(path, options)
        unstreamed = {name: value for name, value in body.items() if name != "stream_options"}
        reply = await client.post(path, unstreamed)
        assert reply.status == 200, reply.body
        check(whole_class, as_typed(path, reply.json()))
        async with client.stream(path, {**body, "stream": True}) as stream:
            events = [event async for event in stream.events()]
        assert events.pop() == "[DONE]"
        for event in events:
            check(chunk_class, as_typed(path, json.loads(event)))


async def test_models_are_what_the_clients_types_say() -> None:
    async with FakeEngine() as engine:
        client = AsgiClient(Api(engine))
        card = (await client.get("/v1/models/fake-model")).json()
        listed = (await client.get("/v1/models")).json()
        assert (listed["object"], listed["data"]) == ("list", [card])
        model = Model.model_validate(card, strict=True)
        assert set(model.model_extra or {}) == {"root", "parent", "max_model_len"}
