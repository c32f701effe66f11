"""Wire to SamplingParams: precedence, names in errors, and every constraint."""

from __future__ import annotations

import json

import pytest

from triolet.errors import InvalidRequest
from triolet.protocol.chat_request import parse_chat_request
from triolet.protocol.completion_request import parse_completion_request
from triolet.protocol.sampling import chat_sampling, check_common, completion_sampling, valid_label
from triolet.sampling_params import SamplingParams, StructuredOutputs


def chat(**fields: object) -> SamplingParams:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    return chat_sampling(parse_chat_request(body)[0], {})


def completion(**fields: object) -> SamplingParams:
    return completion_sampling(parse_completion_request({"prompt": "x", **fields})[0], {})


def test_request_wins_over_the_model_and_the_model_over_the_protocol() -> None:
    model = {"temperature": 0.6, "top_k": 20, "top_p": None, "max_new_tokens": 5}
    body = {"messages": [{"role": "user", "content": "x"}], "top_k": 40}
    got = chat_sampling(parse_chat_request(body)[0], model)
    assert (got.temperature, got.top_k, got.top_p, got.max_tokens) == (0.6, 40, 1.0, None)
    greedy = parse_chat_request({**body, "temperature": 0})[0]
    assert chat_sampling(greedy, model).temperature == 0


def test_every_sampling_field_arrives() -> None:
    fields: dict[str, object] = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 7,
        "min_tokens": 1,
        "stop_token_ids": [3],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
        "bad_words": ["no"],
        "allowed_token_ids": [1, 2],
        "prompt_logprobs": 1,
    }
    expected = SamplingParams(
        **fields,  # type: ignore[arg-type]  # the same names on purpose
        max_tokens=9,
        stop=("a", "b"),
        logit_bias={5: -1.5},
        logprobs=4,
    )
    wire = {**fields, "stop": ["a", "b"], "logit_bias": {"5": -1.5}}
    assert chat(**wire, max_tokens=9, logprobs=True, top_logprobs=4) == expected
    assert completion(**wire, max_tokens=9, logprobs=4) == expected


def test_max_completion_tokens_wins_and_is_named_in_its_error() -> None:
    assert chat(max_tokens=5, max_completion_tokens=7).max_tokens == 7
    with pytest.raises(InvalidRequest) as caught:
        chat(max_completion_tokens=3, min_tokens=5)
    assert caught.value.param == "min_tokens"


def test_completions_default_to_16_tokens_and_chats_to_the_context() -> None:
    assert completion().max_tokens == 16
    assert completion(max_tokens=None).max_tokens == 16
    assert chat().max_tokens is None


def test_logprobs_follow_each_protocol() -> None:
    assert chat().logprobs is None
    assert chat(logprobs=True).logprobs == 0
    assert completion(logprobs=0).logprobs == 0
    assert completion(logprobs=2, echo=True).prompt_logprobs == 2
    assert completion(logprobs=2).prompt_logprobs is None
    assert completion(echo=True, max_tokens=0).max_tokens == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        (
            {"response_format": {"type": "json_object"}},
            StructuredOutputs(json_object=True, any_whitespace=True),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
                }
            },
            StructuredOutputs(
                json_schema=json.dumps({"type": "object"}), strict=True, any_whitespace=True
            ),
        ),
        (
            {"structured_outputs": {"regex": "a+", "disable_any_whitespace": True}},
            StructuredOutputs(regex="a+"),
        ),
        (
            {"structured_outputs": {"choice": ["a", "b"]}},
            StructuredOutputs(choice=("a", "b"), any_whitespace=True),
        ),
        (
            {"structured_outputs": {"json": {"type": "string"}}},
            StructuredOutputs(json_schema='{"type": "string"}', any_whitespace=True),
        ),
    ],
)
def test_constraints_become_structured_outputs(
    fields: dict[str, object], expected: StructuredOutputs | None
) -> None:
    assert chat(**fields).structured_outputs == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 10**6}, "n"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 500}}, "logit_bias.5"),
        ({"stop": [""]}, "stop"),
        ({"seed": 2**64 - 1}, "seed"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "response_format",
        ),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_value_out_of_range_names_its_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"request_id": "has space"}, "request_id"),
        ({"request_id": "x" * 129}, "request_id"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "x" * 300}, "cache_salt"),
    ],
)
def test_rules_between_fields(fields: dict[str, object], param: str) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    with pytest.raises(InvalidRequest) as caught:
        check_common(parse_chat_request(body)[0])
    assert caught.value.param == param


def test_labels_are_short_and_plain() -> None:
    assert valid_label("job-7.a:b_c")
    for label in ("", "a b", "é", "x" * 129, "a\n", "a\r\nset-cookie: x"):
        assert not valid_label(label)
