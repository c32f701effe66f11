"""Every field with every kind of wrong value: only 4xx, the field is named, nothing runs."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from triolet.protocol.chat_request import ChatCompletionRequest, ChatMessage
from triolet.protocol.completion_request import CompletionRequest
from triolet.protocol.fields import CHAT_NOT_BUILT, COMPLETION_NOT_BUILT
from triolet.server.api.app import Api
from triolet.testing.fake_engine import FakeEngine
from triolet.testing.http import AsgiClient, HttpReply

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BASE: dict[str, dict[str, object]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    COMPLETIONS: {"prompt": "hi", "max_tokens": 4},
}
FIELDS = {
    CHAT: sorted({f.name for f in dataclasses.fields(ChatCompletionRequest)} | set(CHAT_NOT_BUILT)),
    COMPLETIONS: sorted(
        {f.name for f in dataclasses.fields(CompletionRequest)} | set(COMPLETION_NOT_BUILT)
    ),
}
VALUES: tuple[object, ...] = (
    "text",
    "",
    "1",
    "true",
    "\x00\u202e\U0001f600",
    -1,
    0,
    2**53,
    2**64 - 1,
    -(2**63),
    1.5,
    1e308,
    -0.0,
    True,
    False,
    [],
    [[]],
    [None],
    ["a", 1],
    [1, "a"],
    [[1], "a"],
    {},
    {"a": 1},
    {"": {}},
    {"1": "x"},
    {"type": "json_schema"},
    [{"role": "user"}],
    [{"role": "user", "content": [[]]}],
    [{"role": "user", "content": [{"type": "text", "text": 1}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}],
)


def acceptable(reply: HttpReply, field: str) -> None:
    assert reply.status == 200 or 400 <= reply.status < 500, (field, reply.body)
    if reply.status != 200:
        error = reply.json()["error"]
        assert error["message"]
        assert error["code"]
        assert len(reply.body) < 8192


@pytest.mark.slow
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_every_field_with_every_kind_of_value(path: str) -> None:
    async with FakeEngine() as engine:
        client = AsgiClient(Api(engine))
        accepted = 0
        for field in FIELDS[path]:
            for value in VALUES:
                reply = await client.post(path, {**BASE[path], field: value})
                acceptable(reply, field)
                accepted += reply.status == 200
                if reply.status == 400 and not isinstance(value, (int, float)):
                    param = reply.json()["error"]["param"]
                    assert param is not None, (field, value, reply.body)
        assert accepted > 60  # not everything is wrong everywhere
        assert engine.live == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(ChatMessage)])
async def test_every_field_of_a_message(name: str) -> None:
    async with FakeEngine() as engine:
        client = AsgiClient(Api(engine))
        for value in VALUES:
            message = {"role": "user", "content": "hi", name: value}
            reply = await client.post(CHAT, {"messages": [message], "max_tokens": 4})
            acceptable(reply, name)
            if reply.status == 400:
                assert reply.json()["error"]["param"].startswith(f"messages[0].{name}")


@pytest.mark.slow
@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(data=st.data())
def test_mutilated_bodies_are_refused_or_answered(data: st.DataObject) -> None:
    """Bytes are cut, doubled and replaced anywhere in a valid body."""
    import trio

    body = bytearray(json.dumps({**BASE[CHAT], "stop": ["a", "b"], "n": 2}).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(body) - 1)))
        length = data.draw(st.integers(0, 5))
        body[at : at + length] = data.draw(st.binary(max_size=5))

    async def send() -> HttpReply:
        async with FakeEngine() as engine:
            headers = {"content-type": "application/json"}
            return await AsgiClient(Api(engine)).request(
                "POST", CHAT, content=bytes(body), headers=headers
            )

    acceptable(trio.run(send), "body")
