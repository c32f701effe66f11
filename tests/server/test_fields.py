"""Fields of chat and completion requests beyond the common ones, through the API."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from trio.testing import MockClock

from triolet.config import ServerConfig
from triolet.engine.client import EngineClient, PromptOptions
from triolet.server.api.app import Api
from triolet.testing.engines import open_fake_engine
from triolet.testing.fake_engine import FakeEngine
from triolet.testing.http import AsgiClient

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@asynccontextmanager
async def api(engine: EngineClient | None = None, **settings: object) -> AsyncGenerator[AsgiClient]:
    config = ServerConfig(**settings)  # type: ignore[arg-type]  # any setting
    if engine is not None:
        yield AsgiClient(Api(engine, config))
        return
    async with FakeEngine(max_model_len=64) as fake:
        yield AsgiClient(Api(fake, config))


@pytest.mark.parametrize(
    ("cut", "text"),
    [
        ({"truncate_prompt_tokens": 3}, "efg"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, "abc"),
        ({"truncate_prompt_tokens": 63}, "abcdefg"),
        ({"truncate_prompt_tokens": -1}, "abcdefg"),
        ({}, "abcdefg"),
    ],
)
@pytest.mark.parametrize("as_ids", [False, True])
async def test_a_prompt_is_cut_to_so_many_tokens(
    cut: dict[str, object], text: str, as_ids: bool
) -> None:
    async with api() as client:
        prompt = list(b"abcdefg") if as_ids else "abcdefg"
        body = {"prompt": prompt, "echo": True, "max_tokens": 1, "return_token_ids": True, **cut}
        reply = (await client.post(COMPLETIONS, body)).json()
        assert reply["choices"][0]["text"] == text + "H"
        assert reply["choices"][0]["prompt_token_ids"] == list(text.encode())
        assert reply["usage"]["prompt_tokens"] == len(text)


async def test_a_long_prompt_is_cut_to_what_the_context_holds() -> None:
    async with api() as client:
        chat = {"messages": [{"role": "user", "content": "x" * 100}]}
        assert (await client.post(CHAT, chat)).status == 400
        reply = await client.post(CHAT, {**chat, "truncate_prompt_tokens": -1})
        assert reply.json()["usage"]["prompt_tokens"] == 63


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 64}, "truncate_prompt_tokens"),
        ({"truncation_side": "left"}, "truncation_side"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "middle"}, "truncation_side"),
        ({"use_beam_search": True, "stream": True}, "use_beam_search"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"guided_json": {}}, "guided_json"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": "x"}},
         "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"structural_tag": {}, "json": {}}}, None),
        ({"deadline_ms": 0}, "deadline_ms"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_what_cannot_be_done_is_refused_by_name(
    path: str, fields: dict[str, object], param: str | None
) -> None:
    async with api() as client:
        reply = await client.post(path, {**HELLO, "prompt": "hi", **fields})
        if param is None:
            assert reply.status == 200  # an empty object asks for nothing
        else:
            assert (reply.status, reply.json()["error"]["param"]) == (400, param)


async def test_tokenizing_takes_what_a_chat_takes() -> None:
    tool = {"type": "function", "function": {"name": "lookup_the_weather"}}
    async with api() as client:
        chat = {"messages": HELLO["messages"]}
        plain = (await client.post("/tokenize", chat)).json()
        full = {**chat, "tools": [tool], "chat_template_kwargs": {"x": True}}
        with_tools = (await client.post("/tokenize", full)).json()
        assert with_tools["count"] > plain["count"]
        counted = await client.post("/v1/chat/completions/render", full)
        assert counted.json()["prompt_token_ids"] == with_tools["tokens"]
        open_end = {**chat, "add_generation_prompt": False}
        assert (await client.post("/tokenize", open_end)).json()["count"] < plain["count"]
        reply = await client.post("/tokenize", {"prompt": "x", "odd": 1})
        assert reply.headers["x-triolet-ignored"] == "odd"
        for body, status, param in (
            ({**chat, "add_special_tokens": True}, 400, "add_special_tokens"),
            ({**chat, "chat_template": "{{ x }}"}, 400, "chat_template"),
            ({**chat, "continue_final_message": True}, 400, "continue_final_message"),
            ({"prompt": "x", "model": "other"}, 404, "model"),
        ):
            refused = await client.post("/tokenize", body)
            assert (refused.status, refused.json()["error"]["param"]) == (status, param)


async def test_several_greedy_outputs_are_allowed_and_equal(autojump_clock: MockClock) -> None:
    async with open_fake_engine() as house, api(house.engine) as client:
        body = {"prompt": "hello", "temperature": 0, "n": 2, "max_tokens": 5}
        one, other = (await client.post(COMPLETIONS, body)).json()["choices"]
        assert one["text"] == other["text"] != ""


async def test_documents_and_switches_reach_the_template() -> None:
    async with FakeEngine() as fake:
        client = AsgiClient(Api(fake))
        fields = {"documents": [{"text": "facts"}], "chat_template_kwargs": {"style": "short"}}
        assert (await client.post(CHAT, {**HELLO, **fields})).status == 200
        options = fake.requests[0].options["options"]
        assert isinstance(options, PromptOptions)
        assert options.documents == ({"text": "facts"},)
        assert options.template_kwargs == {"style": "short"}


async def test_tokens_are_named_by_their_ids() -> None:
    async with api() as client:
        fields = {"return_tokens_as_token_ids": True}
        body = {**fields, "prompt": "hi", "echo": True, "logprobs": 1, "max_tokens": 2}
        logprobs = (await client.post(COMPLETIONS, body)).json()["choices"][0]["logprobs"]
        ids = [*b"hiHe"]
        assert logprobs["tokens"] == [f"token_id:{i}" for i in ids]
        assert logprobs["text_offset"] == [0, 1, 2, 3]
        assert f"token_id:{ids[-1]}" in logprobs["top_logprobs"][-1]
        chat = {**HELLO, **fields, "logprobs": True, "top_logprobs": 1}
        for entry in (await client.post(CHAT, chat)).json()["choices"][0]["logprobs"]["content"]:
            assert entry["token"] == f"token_id:{entry['bytes'][0]}"
            assert entry["top_logprobs"][0]["token"].startswith("token_id:")
        async with client.stream(CHAT, {**chat, "stream": True}) as stream:
            events = [event async for event in stream.events()]
        assert sum("token_id:" in event for event in events) == 1
        assert json.loads(events[0])["choices"][0]["logprobs"] is None


async def test_beam_search_returns_the_best_outputs_of_the_engine(
    autojump_clock: MockClock,
) -> None:
    async with open_fake_engine() as house, api(house.engine) as client:
        body = {"prompt": "hello", "max_tokens": 5, "use_beam_search": True, "n": 3, "logprobs": 1}
        reply = await client.post(COMPLETIONS, body)
        assert reply.status == 200, reply.body
        texts = [choice["text"] for choice in reply.json()["choices"]]
        assert len(set(texts)) == 3
        sums = [sum(c["logprobs"]["token_logprobs"]) for c in reply.json()["choices"]]
        assert sums == sorted(sums, reverse=True)
        shorter = await client.post(COMPLETIONS, {**body, "length_penalty": 0.1})
        assert shorter.status == 200
        refused = await client.post(COMPLETIONS, {**body, "presence_penalty": 1})
        assert (refused.status, refused.json()["error"]["param"]) == (400, "presence_penalty")


async def test_the_operators_limit_of_time_names_the_field(autojump_clock: MockClock) -> None:
    async with open_fake_engine(timeout_max_s=1.0) as house, api(house.engine) as client:
        reply = await client.post(COMPLETIONS, {"prompt": "x", "deadline_ms": 5000})
        assert (reply.status, reply.json()["error"]["param"]) == (400, "deadline_ms")
