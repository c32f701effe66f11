"""Forced calls by a real engine: a model of random weights can only write what it must."""

from __future__ import annotations

import json
from typing import Any

import pytest

from triolet.config import ServerConfig
from triolet.engine.open_engine import open_engine
from triolet.server.api.app import Api
from triolet.testing.http import AsgiClient

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TOOL = {
    "name": "light",
    "parameters": {
        "type": "object",
        "properties": {
            "room": {"enum": ["kitchen", "hall"]},
            "level": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["room", "level"],
        "additionalProperties": False,
    },
}
HI = [{"role": "user", "content": "Light, please"}]


async def test_a_forced_call_is_a_call_in_every_protocol() -> None:
    async with open_engine("tiny-random", max_model_len=1024) as engine:
        client = AsgiClient(Api(engine, ServerConfig()))
        chat: dict[str, Any] = {
            "messages": HI,
            "tools": [{"type": "function", "function": TOOL}],
            "tool_choice": {"type": "function", "function": {"name": "light"}},
            "seed": 1,
            "max_tokens": 200,
        }
        choice = (await client.post("/v1/chat/completions", chat)).json()["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        arguments = [json.loads(call["function"]["arguments"])]
        async with client.stream("/v1/chat/completions", {**chat, "stream": True}) as stream:
            events = [event async for event in stream.events()]
        deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
        (streamed,) = [call for delta in deltas for call in delta.get("tool_calls", [])]
        assert streamed["function"] == call["function"]
        message = {
            "model": engine.facts.name,
            "max_tokens": 200,
            "messages": HI,
            "tools": [{"name": "light", "input_schema": TOOL["parameters"]}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        }
        reply = (await client.post("/v1/messages", message)).json()
        assert reply["stop_reason"] == "tool_use"
        arguments += [block["input"] for block in reply["content"]]
        response = {
            "input": "Light, please",
            "max_output_tokens": 200,
            "tools": [{"type": "function", **TOOL}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        }
        output = (await client.post("/v1/responses", response)).json()["output"]
        arguments += [json.loads(item["arguments"]) for item in output]
        unenforceable = {"type": "object", "properties": {"a": {"uniqueItems": True}}}
        strict = {"name": "f", "parameters": unenforceable, "strict": True}
        bad = {**chat, "tools": [{"type": "function", "function": strict}]}
        fault = await client.post("/v1/chat/completions", {**bad, "tool_choice": "required"})
        assert (fault.status, fault.json()["error"]["param"]) == (400, "tools")
        assert "uniqueItems" in fault.json()["error"]["message"]
    assert len(arguments) == 3
    for found in arguments:
        assert found["room"] in ("kitchen", "hall")
        assert 0 <= found["level"] <= 9
