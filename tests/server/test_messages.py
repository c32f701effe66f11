"""/v1/messages over a fake engine: routes, error shapes, both shapes of models."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.chat_models import hermes, qwen
from support.outputs import named_events
from triolet.config import ServerConfig
from triolet.errors import PoisonRequest, QueueFull
from triolet.server.api.app import Api
from triolet.testing.fake_engine import FakeEngine, Script
from triolet.testing.http import AsgiClient, HttpReply

MESSAGES = "/v1/messages"
HELLO: dict[str, Any] = {
    "model": "fake-model",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "hi"}],
}
TOOL = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}


@asynccontextmanager
async def client_of(engine: FakeEngine, **settings: object) -> AsyncGenerator[AsgiClient]:
    async with engine:
        yield AsgiClient(Api(engine, ServerConfig(**settings)))  # type: ignore[arg-type]  # any


def kind_of_error(reply: HttpReply) -> str:
    body = reply.json()
    assert body["type"] == "error"
    kind = body["error"]["type"]
    assert isinstance(kind, str)
    return kind


async def test_a_message_and_its_stream() -> None:
    engine = qwen("<think>hm</think>", "Hi", hermes("clock"), cached_tokens=3)
    async with client_of(engine) as client:
        body = {**HELLO, "tools": [TOOL], "system": "Be kind", "stop_sequences": ["END"]}
        reply = await client.post(MESSAGES, body)
        message = reply.json()
        assert reply.headers["request-id"] == message["id"].removeprefix("msg_")
        assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
        assert message["stop_reason"] == "tool_use"
        assert message["usage"]["cache_read_input_tokens"] == 3
        sampling = engine.requests[0].sampling
        assert (sampling.max_tokens, sampling.stop) == (100, ("END",))
        async with client.stream(MESSAGES, {**body, "stream": True}) as stream:
            events = named_events((await stream.read()).decode())
        counted = (await client.post(f"{MESSAGES}/count_tokens", body)).json()
    start = events[0]["message"]["usage"]
    assert start["input_tokens"] == counted["input_tokens"]
    assert events[-2]["usage"] == message["usage"]
    assert message["usage"]["input_tokens"] == counted["input_tokens"] - 3


async def test_counting_takes_tools_into_account() -> None:
    async with client_of(qwen("x")) as client:
        plain = (await client.post(f"{MESSAGES}/count_tokens", HELLO)).json()["input_tokens"]
        body = {**HELLO, "tools": [TOOL]}
        with_tools = (await client.post(f"{MESSAGES}/count_tokens", body)).json()["input_tokens"]
        assert with_tools > plain > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "kind", "param"),
    [
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"temperature": 3}, 400, "invalid_request_error", "temperature"),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences"),
        ({"model": "claude"}, 404, "not_found_error", "model"),
        (
            {"messages": [{"role": "user", "content": "x" * 5000}]},
            400,
            "invalid_request_error",
            "messages",
        ),
    ],
)
async def test_faults_have_anthropics_shape(
    fields: dict[str, object], status: int, kind: str, param: str, stream: bool
) -> None:
    async with client_of(FakeEngine()) as client:
        reply = await client.post(MESSAGES, {**HELLO, **fields, "stream": stream})
        assert (reply.status, kind_of_error(reply)) == (status, kind)
        assert reply.json()["error"]["param"] == param


async def test_every_error_under_the_path_has_anthropics_shape() -> None:
    async with client_of(FakeEngine(), api_keys=("k",), max_body_bytes=200) as client:
        key = {"x-api-key": "k"}
        json_type = {"content-type": "application/json"}
        for reply, status, kind in (
            (await client.post(MESSAGES, HELLO), 401, "authentication_error"),
            (await client.post(f"{MESSAGES}/x", HELLO, key), 404, "not_found_error"),
            (await client.get(MESSAGES, key), 405, "invalid_request_error"),
            (
                await client.post(MESSAGES, {**HELLO, "system": "x" * 300}, key),
                413,
                "request_too_large",
            ),
            (
                await client.request("POST", MESSAGES, content=b"{", headers={**key, **json_type}),
                400,
                "invalid_request_error",
            ),
            (
                await client.get("/v1/models", {"anthropic-version": "2023-06-01"}),
                401,
                "authentication_error",
            ),
        ):
            assert (reply.status, kind_of_error(reply)) == (status, kind)
        bearer = {"authorization": "Bearer k"}
        assert (await client.post(MESSAGES, HELLO, bearer)).status == 200
        assert (await client.post(MESSAGES, HELLO, key)).status == 200
        assert "type" not in (await client.get("/v1/models")).json()


async def test_failures_of_the_engine() -> None:
    async with client_of(FakeEngine(Script(admission_error=QueueFull("full")))) as client:
        reply = await client.post(MESSAGES, HELLO)
        assert (reply.status, kind_of_error(reply)) == (429, "rate_limit_error")
    script = Script(error=PoisonRequest("it kills the runner"), error_after=1)
    async with client_of(FakeEngine(script)) as client:
        async with client.stream(MESSAGES, {**HELLO, "stream": True}) as stream:
            text = (await stream.read()).decode()
    assert "[DONE]" not in text
    events = named_events(text)
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"


async def test_models_in_both_shapes() -> None:
    async with client_of(FakeEngine(), served_model_name=("a", "b")) as client:
        own = {"anthropic-version": "2023-06-01"}
        page = (await client.get("/v1/models", own)).json()
        assert [card["type"] for card in page["data"]] == ["model", "model"]
        assert (page["first_id"], page["last_id"], page["has_more"]) == ("a", "b", False)
        card = (await client.get("/v1/models/b", own)).json()
        assert card["display_name"] == "b"
        assert card["created_at"].endswith("Z")
        assert (await client.get("/v1/models/b")).json()["object"] == "model"
        missing = await client.get("/v1/models/c", own)
        assert kind_of_error(missing) == "not_found_error"
        assert json.loads(missing.body)["error"]["param"] == "model"


async def test_a_request_is_cancelled_by_the_id_of_its_message() -> None:
    async with client_of(FakeEngine()) as client:
        reply = await client.request("POST", "/v1/requests/msg_abc/cancel")
        assert reply.status == 404


async def test_a_request_as_agents_send_it() -> None:
    """Betas, cache marks and provider's tools are no faults: what is ignored is listed."""
    ephemeral = {"cache_control": {"type": "ephemeral"}}
    body = {
        **HELLO,
        "system": [{"type": "text", "text": "You are an agent.", **ephemeral}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "task", **ephemeral}]},
        ],
        "tools": [
            {**TOOL, "description": "The time", **ephemeral},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "metadata": {"user_id": "u"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "stream": True,
    }
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "x,y"}
    async with client_of(qwen("Done.")) as client:
        async with client.stream(f"{MESSAGES}?beta=true", body, headers) as stream:
            assert stream.status == 200
            ignored = stream.headers["x-triolet-ignored"].split(", ")
            events = named_events((await stream.read()).decode())
    assert events[-1]["type"] == "message_stop"
    assert ignored == ["context_management", "tools.web_search_20250305"]
