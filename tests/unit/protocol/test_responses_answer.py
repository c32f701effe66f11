"""Answers of /v1/responses: golden bytes, the grammar of events, stream equals whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from support.chat_models import hermes
from support.outputs import READING, answered, cut, named_events, outputs
from triolet.errors import EngineDead, QueueFull
from triolet.output import OutputDelta, Usage
from triolet.protocol.answer import AcceptedPrompt, AnswerHead
from triolet.protocol.chat_request import FunctionCall, ToolCall
from triolet.protocol.responses_answer import ResponseAnswer, ResponseObject
from triolet.request import FinishReason

HEAD = AnswerHead(id="resp_1", created=1700000000, model="m")
USAGE = Usage(prompt_tokens=5, completion_tokens=7, cached_tokens=2)
ENDS = ("response.completed", "response.incomplete", "response.failed")


def answer(*, stream: bool, ends: list[ResponseObject] | None = None) -> ResponseAnswer:
    on_end = None if ends is None else ends.append
    return ResponseAnswer(HEAD, {"store": True}, READING, stream=stream, on_end=on_end)


def test_golden_bytes_of_a_stream() -> None:
    got = answered(answer(stream=True), cut("Hi!", {2}, FinishReason.STOP, None), USAGE)
    begun = (
        '{"id":"resp_1","object":"response","created_at":1700000000,"status":"in_progress",'
        '"error":null,"incomplete_details":null,"model":"m","output":[],"usage":null,"store":true}'
    )
    part = '{"type":"output_text","text":"","annotations":[],"logprobs":[]}'
    whole = part.replace('"text":""', '"text":"Hi!"')
    item = (
        '{"id":"msg_1_0","type":"message","status":"in_progress","role":"assistant","content":[]}'
    )
    done = item.replace("in_progress", "completed").replace("[]", f"[{whole}]")
    usage = (
        '{"input_tokens":5,"input_tokens_details":{"cached_tokens":2,"cache_write_tokens":0},'
        '"output_tokens":7,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":12}'
    )
    ended = (
        begun.replace("in_progress", "completed")
        .replace('"output":[]', f'"output":[{done}]')
        .replace('"usage":null', f'"usage":{usage}')
    )
    at = '"output_index":0,"item_id":"msg_1_0","content_index":0'
    bodies = [
        ("response.created", f'"response":{begun}'),
        ("response.in_progress", f'"response":{begun}'),
        ("response.output_item.added", f'"output_index":0,"item":{item}'),
        ("response.content_part.added", f'{at},"part":{part}'),
        ("response.output_text.delta", f'{at},"delta":"Hi","logprobs":[]'),
        ("response.output_text.delta", f'{at},"delta":"!","logprobs":[]'),
        ("response.output_text.done", f'{at},"text":"Hi!","logprobs":[]'),
        ("response.content_part.done", f'{at},"part":{whole}'),
        ("response.output_item.done", f'"output_index":0,"item":{done}'),
        ("response.completed", f'"response":{ended}'),
    ]
    assert got == "".join(
        f'event: {name}\ndata: {{"type":"{name}","sequence_number":{i},{body}}}\n\n'
        for i, (name, body) in enumerate(bodies)
    )


def followed(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response that a client makes of a stream; checks the order of events."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    output: list[dict[str, Any]] = []
    text = ""
    expected = {"response.output_item.added"}
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        assert event["type"] in expected
        assert event["output_index"] == len(output) - (kind != "output_item.added")
        if kind not in ("output_item.added", "output_item.done"):
            assert event["item_id"] == output[-1]["id"]
        match kind:
            case "output_item.added":
                output.append(event["item"])
                text = ""
                inner = "content_part.added"
                if event["item"]["type"] == "function_call":
                    inner = "function_call_arguments.delta"
                expected = {f"response.{inner}"}
            case "content_part.added":
                family = "reasoning_text" if output[-1]["type"] == "reasoning" else "output_text"
                expected = {f"response.{family}.delta", f"response.{family}.done"}
            case "output_text.delta" | "reasoning_text.delta" | "function_call_arguments.delta":
                text += event["delta"]
                if kind == "function_call_arguments.delta":
                    expected = {"response.function_call_arguments.done"}
            case "output_text.done" | "reasoning_text.done":
                assert event["text"] == text
                expected = {"response.content_part.done"}
            case "function_call_arguments.done":
                assert event["arguments"] == text
                expected = {"response.output_item.done"}
            case "content_part.done":
                assert event["part"]["text"] == text
                expected = {"response.output_item.done"}
            case "output_item.done":
                assert event["item"]["id"] == output[-1]["id"]
                output[-1] = event["item"]
                expected = {"response.output_item.added"}
            case other:
                raise AssertionError(other)
    assert expected == {"response.output_item.added"}
    response: dict[str, Any] = events[-1]["response"]
    assert events[-1]["type"] == f"response.{response['status']}"
    assert events[-1]["type"] in ENDS
    assert response["output"] == output
    return response


@pytest.mark.slow
@given(outputs())
def test_a_followed_stream_is_the_whole_response(deltas: list[OutputDelta]) -> None:
    ends: list[ResponseObject] = []
    body = json.loads(answered(answer(stream=False, ends=ends), deltas, USAGE))
    stream = answered(answer(stream=True), deltas, USAGE)
    assert followed(named_events(stream)) == body
    assert json.loads(json.dumps(ends)) == [body]
    assert body["output"]
    if body["status"] == "incomplete":
        assert body["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_response_is_a_turn_to_go_on_from() -> None:
    made = answer(stream=False)
    text = f"<think>hm</think>Hi{hermes('f', a='x')}"
    answered(made, cut(text, (), FinishReason.STOP, None), USAGE)
    message = made.message()
    assert (message.role, message.content, message.reasoning) == ("assistant", "Hi", "hm")
    (call,) = message.tool_calls or ()
    assert call == ToolCall(id=call.id, function=FunctionCall(name="f", arguments='{"a": "x"}'))


@pytest.mark.parametrize(
    ("error", "code"),
    [(EngineDead("x" * 9999), "server_error"), (QueueFull("full"), "rate_limit_exceeded")],
)
def test_a_failure_is_told_once_with_the_items_that_were_done(
    error: EngineDead | QueueFull, code: str
) -> None:
    ends: list[ResponseObject] = []
    made = answer(stream=True, ends=ends)
    out = made.start(0, AcceptedPrompt((1,)))
    out += made.put(0, OutputDelta(0, "Hi", (1,)))
    out += made.fail(error)
    events = named_events(out.decode())
    assert events[-1]["type"] == "response.failed"
    response = events[-1]["response"]
    assert (response["status"], response["output"]) == ("failed", [])
    assert response["error"]["code"] == code
    assert len(response["error"]["message"]) <= 1000
    assert len(ends) == 1
