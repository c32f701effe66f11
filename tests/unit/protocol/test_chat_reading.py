"""Chats that are read for reasoning and calls: a joined stream is the whole answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from support.outputs import READING, answered, outputs
from triolet.output import OutputDelta, Usage
from triolet.protocol.answer import AnswerHead
from triolet.protocol.chat_answer import ChatBody, ChatShape, ChatStream


class Letters:
    """Token i is the character chr(i)."""

    def token_text(self, token_id: int) -> str:
        return chr(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()


HEAD = AnswerHead(id="chatcmpl-1", created=1700000000, model="m")
USAGE = Usage(prompt_tokens=5, completion_tokens=7, cached_tokens=2)


@pytest.mark.slow
@given(outputs(), st.booleans(), st.booleans())
def test_a_joined_stream_is_the_whole_answer(
    deltas: list[OutputDelta], ids: bool, continuous: bool
) -> None:
    shape = ChatShape(
        n=1,
        names=Letters(),
        return_token_ids=ids,
        include_usage=True,
        continuous_usage=continuous,
        reading=READING,
    )
    body = json.loads(answered(ChatBody(HEAD, shape), deltas, USAGE))
    stream = answered(ChatStream(HEAD, shape), deltas, USAGE)
    events = stream.removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert chunks[-1]["usage"] == body["usage"]
    (whole,) = body["choices"]
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    joined: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for choice in choices:
        delta = choice["delta"]
        joined["content"] += delta.get("content") or ""
        joined["reasoning"] += delta.get("reasoning", "")
        for call in delta.get("tool_calls", []):
            assert call.pop("index") == len(joined["tool_calls"])
            joined["tool_calls"].append(call)
    message = whole["message"]
    assert joined == {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning", ""),
        "tool_calls": message.get("tool_calls", []),
    }
    assert choices[-1]["finish_reason"] == whole["finish_reason"]
    assert choices[-1]["stop_reason"] == whole["stop_reason"]
    assert all(choice["finish_reason"] is None for choice in choices[:-1])
    if ids:
        assert [i for c in choices for i in c.get("token_ids", [])] == whole["token_ids"]
