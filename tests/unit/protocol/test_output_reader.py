"""Reading deltas: reasoning tokens, ids of calls, finish reasons."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from support.chat_models import hermes
from support.outputs import READING, cut
from triolet.output import OutputDelta
from triolet.protocol.output_reader import MadeCall, OutputReader, Reading
from triolet.protocol.parsers.output_parser import ReasoningMarks
from triolet.request import FinishReason


def read(reading: Reading, deltas: list[OutputDelta]) -> tuple[OutputReader, list[MadeCall]]:
    reader = OutputReader(reading, "chatcmpl-1")
    pieces = [piece for delta in deltas for piece in reader.put(delta)]
    return reader, [piece for piece in pieces if isinstance(piece, MadeCall)]


@pytest.mark.slow
@given(st.sets(st.integers(0, 26), max_size=6))
def test_reasoning_tokens_do_not_depend_on_the_chunking(cuts: set[int]) -> None:
    """The end mark is the token 62 (">") here, which nothing before it is."""
    text = "[think hm\n[/think>Hi there!"
    marks = replace(READING.parser, reasoning=ReasoningMarks("[think", "[/think>"))
    reading = Reading(parser=marks, reasoning_end_id=62)
    reader, _ = read(reading, cut(text, cuts, FinishReason.STOP, None))
    assert reader.reasoning_tokens == text.index(">") + 1


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("Hi", 0), ("", 0), ("<think>hm", 9), ("<think>hm</think>", 17), ("a<think>hm</think>", 0)],
)
def test_reasoning_tokens_of_whole_texts(text: str, tokens: int) -> None:
    reader, _ = read(READING, cut(text, range(len(text)), FinishReason.STOP, None))
    assert reader.reasoning_tokens == tokens


def test_calls_have_ids_of_their_own() -> None:
    deltas = cut(hermes("f") * 3, (), FinishReason.STOP, None)
    _, calls = read(READING, deltas)
    assert [call.index for call in calls] == [0, 1, 2]
    assert len({call.id for call in calls}) == 3
    assert read(READING, deltas)[1] == calls
    _, short = read(replace(READING, short_ids=True), deltas)
    assert all(len(call.id) == 9 and call.id.isalnum() for call in short)


@pytest.mark.parametrize(
    ("text", "reason", "named", "expected"),
    [
        (hermes("f"), FinishReason.STOP, False, ("tool_calls", None)),
        (hermes("f"), FinishReason.STOP, True, ("stop", None)),
        (hermes("f"), FinishReason.LENGTH, False, ("length", None)),
        (hermes("f")[:-20], FinishReason.STOP, False, ("stop", None)),
        ("Hi", FinishReason.STOP, False, ("stop", None)),
    ],
)
def test_finish_reasons(
    text: str, reason: FinishReason, named: bool, expected: tuple[str, str | None]
) -> None:
    reader, _ = read(replace(READING, named=named), cut(text, (), reason, None))
    assert reader.finish == expected
