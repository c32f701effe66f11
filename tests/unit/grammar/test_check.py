"""The helper process: one question, one answer, JSON both ways."""

import subprocess

import pytest
from hypothesis import given, settings, strategies as st

from triolet.errors import InvalidRequest
from triolet.grammar.check import (
    COMMAND,
    answer,
    decode_answer,
    decode_question,
    encode_question,
    no_answer,
)
from triolet.sampling_params import StructuredOutputs

text = st.text(min_size=1, max_size=20)
structured_outputs = st.one_of(
    st.builds(StructuredOutputs, json_schema=text, strict=st.booleans()),
    st.builds(StructuredOutputs, json_object=st.just(True), any_whitespace=st.booleans()),
    st.builds(StructuredOutputs, regex=text),
    st.builds(StructuredOutputs, choice=st.lists(text, min_size=1).map(tuple)),
    st.builds(StructuredOutputs, grammar=text),
)


@given(structured_outputs)
def test_a_question_arrives_as_it_was_sent(structured: StructuredOutputs) -> None:
    assert decode_question(encode_question(structured)) == structured


@settings(max_examples=50)
@given(structured_outputs)
def test_every_question_has_an_answer(structured: StructuredOutputs) -> None:
    try:
        warnings = decode_answer(answer(encode_question(structured)))
    except InvalidRequest as error:
        assert (error.param or "").startswith("structured_outputs")  # noqa: PT017  either end is right
    else:
        assert isinstance(warnings, tuple)


def test_half_an_answer_is_none() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        decode_answer(b"")


def test_a_killed_helper_is_the_fault_of_its_grammar() -> None:
    error = no_answer(StructuredOutputs(regex="a"), 2.5)
    assert error.param == "structured_outputs.regex"
    assert "2.5 s" in error.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("structured", "words"),
    [
        (StructuredOutputs(json_object=True), None),
        (StructuredOutputs(json_schema='{"type":"array","uniqueItems":true}'), "uniqueItems"),
    ],
)
def test_the_process_answers(structured: StructuredOutputs, words: str | None) -> None:
    done = subprocess.run(
        COMMAND, input=encode_question(structured), capture_output=True, check=True, timeout=60
    )
    assert done.stderr == b""
    if words is None:
        assert decode_answer(done.stdout) == ()
    else:
        with pytest.raises(InvalidRequest, match=words):
            decode_answer(done.stdout)
