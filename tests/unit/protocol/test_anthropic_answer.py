"""Answers of /v1/messages: golden bytes, the grammar of events, stream equals whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from support.chat_models import hermes
from support.outputs import READING, answered, cut, named_events, outputs
from triolet.errors import EngineDead, InvalidRequest, ModelNotFound, QueueFull
from triolet.output import OutputDelta, Usage
from triolet.protocol.answer import AnswerHead
from triolet.protocol.anthropic_answer import (
    UNSIGNED,
    MessageBody,
    MessageStream,
    anthropic_error,
    anthropic_error_event,
)
from triolet.request import FinishReason

HEAD = AnswerHead(id="msg_1", created=1700000000, model="m")
USAGE = Usage(prompt_tokens=5, completion_tokens=7, cached_tokens=2)


def test_golden_bytes_of_a_stream() -> None:
    text = f"<think>hm</think>Hi{hermes('f', a='x')}"
    deltas = cut(text, {3, 8, 20}, FinishReason.STOP, None)
    got = answered(MessageStream(HEAD, READING), deltas, USAGE)
    call_id = json.loads(answered(MessageBody(HEAD, READING), deltas, USAGE))["content"][2]["id"]
    zero = '"cache_creation_input_tokens":0,"cache_read_input_tokens":0'
    assert got == (
        'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1",'
        '"type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,'
        '"stop_sequence":null,"usage":{"input_tokens":5,"output_tokens":0,' + zero + "}}}\n\n"
        'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        '"content_block":{"type":"thinking","thinking":"","signature":""}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        '"delta":{"type":"thinking_delta","thinking":"h"}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        '"delta":{"type":"thinking_delta","thinking":"m"}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        '"delta":{"type":"signature_delta","signature":"unsigned"}}\n\n'
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
        'event: content_block_start\ndata: {"type":"content_block_start","index":1,'
        '"content_block":{"type":"text","text":""}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":1,'
        '"delta":{"type":"text_delta","text":"Hi"}}\n\n'
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":1}\n\n'
        'event: content_block_start\ndata: {"type":"content_block_start","index":2,'
        f'"content_block":{{"type":"tool_use","id":"{call_id}","name":"f","input":{{}}}}}}\n\n'
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":2,'
        '"delta":{"type":"input_json_delta","partial_json":"{\\"a\\": \\"x\\"}"}}\n\n'
        'event: content_block_stop\ndata: {"type":"content_block_stop","index":2}\n\n'
        'event: message_delta\ndata: {"type":"message_delta",'
        '"delta":{"stop_reason":"tool_use","stop_sequence":null},'
        '"usage":{"input_tokens":3,"output_tokens":7,"cache_creation_input_tokens":0,'
        '"cache_read_input_tokens":2}}\n\n'
        'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )


@pytest.mark.parametrize(
    ("text", "reason", "stop", "expected"),
    [
        ("Hi", FinishReason.STOP, None, ("end_turn", None)),
        ("Hi", FinishReason.STOP, "END", ("stop_sequence", "END")),
        ("Hi", FinishReason.LENGTH, None, ("max_tokens", None)),
        ("Hi", FinishReason.TIMEOUT, None, ("max_tokens", None)),
        ("Hi", FinishReason.CANCELLED, None, ("end_turn", None)),
        (hermes("f"), FinishReason.STOP, None, ("tool_use", None)),
        (hermes("f"), FinishReason.LENGTH, None, ("max_tokens", None)),
    ],
)
def test_stop_reasons(
    text: str, reason: FinishReason, stop: str | None, expected: tuple[str, str | None]
) -> None:
    body = json.loads(answered(MessageBody(HEAD, READING), cut(text, (), reason, stop), USAGE))
    assert (body["stop_reason"], body["stop_sequence"]) == expected


def test_an_empty_answer_is_an_empty_text() -> None:
    deltas = cut("", (), FinishReason.STOP, None)
    body = json.loads(answered(MessageBody(HEAD, READING), deltas, USAGE))
    assert body["content"] == [{"type": "text", "text": ""}]
    events = named_events(answered(MessageStream(HEAD, READING), deltas, USAGE))
    assert joined(events)["content"] == body["content"]


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of a stream; checks the order of events."""
    assert events[0]["type"] == "message_start"
    message: dict[str, Any] = events[0]["message"]
    is_open = False
    json_text = ""
    for event in events[1:-2]:
        index = len(message["content"]) - 1
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == index + 1
                message["content"].append(event["content_block"])
                is_open, json_text = True, ""
            case "content_block_delta":
                assert is_open
                assert event["index"] == index
                delta, block = event["delta"], message["content"][index]
                match delta.pop("type"), block["type"]:
                    case "text_delta", "text":
                        block["text"] += delta["text"]
                    case "thinking_delta", "thinking":
                        block["thinking"] += delta["thinking"]
                    case "signature_delta", "thinking":
                        block["signature"] += delta["signature"]
                    case "input_json_delta", "tool_use":
                        json_text += delta["partial_json"]
                    case other:
                        raise AssertionError(other)
            case "content_block_stop":
                assert is_open
                assert event["index"] == index
                if message["content"][index]["type"] == "tool_use":
                    message["content"][index]["input"] = json.loads(json_text)
                is_open = False
            case other:
                raise AssertionError(other)
    assert not is_open
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


@pytest.mark.slow
@given(outputs())
def test_a_joined_stream_is_the_whole_message(deltas: list[OutputDelta]) -> None:
    body = json.loads(answered(MessageBody(HEAD, READING), deltas, USAGE))
    stream = answered(MessageStream(HEAD, READING), deltas, USAGE)
    assert joined(named_events(stream)) == body
    for block in body["content"]:
        assert block.get("signature", UNSIGNED) == UNSIGNED


def test_errors_have_anthropics_shape() -> None:
    for error, kind in (
        (InvalidRequest("bad", param="max_tokens"), "invalid_request_error"),
        (ModelNotFound("no"), "not_found_error"),
        (QueueFull("full"), "rate_limit_error"),
        (EngineDead("dead"), "overloaded_error"),
    ):
        body = anthropic_error(error)
        assert body["type"] == "error"
        assert isinstance(body["error"], dict)
        assert body["error"]["type"] == kind
    (event,) = named_events(anthropic_error_event(EngineDead("x" * 99_999)).decode())
    assert event["type"] == "error"
    assert len(event["error"]["message"]) <= 1000
