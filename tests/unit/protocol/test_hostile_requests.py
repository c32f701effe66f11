"""Any JSON in any field of any request is read, or refused with a short message and a path."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, strategies as st

from triolet.errors import InvalidRequest
from triolet.protocol.anthropic_fields import MessagesRequest
from triolet.protocol.anthropic_request import (
    parse_count_tokens_request,
    parse_messages_request,
)
from triolet.protocol.chat_request import ChatCompletionRequest, parse_chat_request
from triolet.protocol.responses_fields import ResponsesRequest
from triolet.protocol.responses_request import parse_responses_request

HELLO = [{"role": "user", "content": "x"}]
MESSAGE = {"model": "m", "max_tokens": 5, "messages": HELLO}
KINDS = st.sampled_from(
    [
        *("text", "input_text", "refusal", "message", "reasoning", "thinking", "tool_use"),
        *("tool_result", "function", "function_call", "function_call_output", "custom"),
        *("auto", "any", "tool", "none", "required", "json_schema", "json_object", "enabled"),
        *("user", "assistant", "system", "developer"),
    ]
)
KEYS = st.sampled_from(
    [
        *("type", "role", "content", "text", "name", "id", "call_id", "tool_use_id", "input"),
        *("output", "arguments", "function", "parameters", "input_schema", "strict", "format"),
        *("schema", "json_schema", "effort", "summary", "thinking", "description", "tool_calls"),
    ]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
    | st.just("a" * 5000)
    | KINDS
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)
Parse = Callable[[Mapping[str, object]], object]


def bodies(cls: type, valid: Mapping[str, object]) -> st.SearchStrategy[dict[str, object]]:
    """A valid request with some fields replaced by anything."""
    names = st.sampled_from([field.name for field in dataclasses.fields(cls)])
    return st.dictionaries(names, VALUES, min_size=1, max_size=3).map(lambda f: {**valid, **f})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "parse", "valid"),
    [
        (ChatCompletionRequest, parse_chat_request, {"messages": HELLO}),
        (MessagesRequest, parse_messages_request, MESSAGE),
        (MessagesRequest, parse_count_tokens_request, MESSAGE),
        (ResponsesRequest, parse_responses_request, {"input": "x"}),
    ],
)
@given(data=st.data())
def test_any_json_is_read_or_refused(
    cls: type, parse: Parse, valid: Mapping[str, object], data: st.DataObject
) -> None:
    parse(valid)
    refused: InvalidRequest | None = None
    try:
        parse(data.draw(bodies(cls, valid)))
    except InvalidRequest as error:
        refused = error
    if refused is not None:
        assert refused.param
        assert len(refused.param) < 200
        assert len(refused.message) < 2000
