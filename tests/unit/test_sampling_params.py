"""Sampling parameters that cannot be are refused by name when they are made."""

import math

import pytest

from triolet.errors import InvalidRequest
from triolet.sampling_params import SamplingParams, StructuredOutputs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", True),
        ("n", 10**6),
        ("keep", 2),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", "hot"),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 2.0),
        ("seed", 2**64),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("stop", ["a"] * 17),
        ("stop", ""),
        ("stop", [1]),
        ("stop_token_ids", ["a"]),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e-300),
        ("length_penalty", 1e308),
        ("length_penalty", -500.0),
        ("length_penalty", math.inf),
        ("logit_bias", {1: 101}),
        ("logit_bias", None),
        ("logit_bias", [1]),
        ("bad_words", [""]),
        ("allowed_token_ids", []),
        ("logprobs", -1),
        ("prompt_logprobs", 1.5),
        ("beam_width", 0),
        ("ignore_eos", "no"),
        ("skip_special_tokens", 0),
        ("output_kind", "bogus"),
        ("structured_outputs", {"json": "{}"}),
        ("logits_processors", 5),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type] # that is the point
    assert caught.value.param == name or str(caught.value.param).startswith(f"{name}.")
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({}, "structured_outputs"),
        ({"regex": "a", "choice": ["b"]}, "structured_outputs"),
        ({"regex": 5}, "structured_outputs.regex"),
        ({"grammar": b"start: x"}, "structured_outputs.grammar"),
        ({"choice": "abc"}, "structured_outputs.choice"),
        ({"choice": [1]}, "structured_outputs.choice"),
        ({"choice": []}, "structured_outputs.choice"),
        ({"json_schema": True}, "structured_outputs.json_schema"),
        ({"json_schema": {"a": {1}}}, "structured_outputs.json_schema"),
        ({"json_object": "no"}, "structured_outputs.json_object"),
    ],
)
def test_a_constraint_that_cannot_be_is_refused_by_name(
    arguments: dict[str, object], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        StructuredOutputs(**arguments)  # type: ignore[arg-type] # that is the point
    assert caught.value.param == param


def test_natural_spellings_are_taken() -> None:
    assert StructuredOutputs(choice=["a", "b"]).choice == ("a", "b")
    schema = StructuredOutputs(json_schema={"type": "object"})
    assert schema.json_schema == '{"type": "object"}'
    assert hash(schema) == hash(StructuredOutputs(json_schema='{"type": "object"}'))
    assert SamplingParams(stop="x").stop == ("x",)
    assert SamplingParams(stop=None).stop == ()
