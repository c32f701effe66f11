import pytest
from hypothesis import given, settings, strategies as st

from triolet.dispatcher.backpressure import DeltaBuffer, merge, merge_all, num_bytes
from triolet.errors import InternalError
from triolet.output import OutputDelta, TokenLogprobs
from triolet.request import FinishReason
from triolet.sampling_params import OutputKind


def delta(text: str, index: int = 0, finish: FinishReason | None = None) -> OutputDelta:
    """A delta of one token per character, with log-probabilities."""
    ids = tuple(map(ord, text))
    logprobs = tuple(TokenLogprobs(i, -1.0, 1) for i in ids)
    return OutputDelta(index, text, ids, logprobs, finish, token_texts=tuple(text))


DELTAS = st.lists(st.text(max_size=4).map(delta), min_size=1)


@given(DELTAS)
@settings(max_examples=30, deadline=None)
def test_merged_deltas_say_what_the_single_ones_said(deltas: list[OutputDelta]) -> None:
    merged = merge_all(deltas)
    assert merged == delta("".join(d.text for d in deltas))


def test_merge_is_associative_and_keeps_the_end() -> None:
    a, b, c = delta("a"), delta("b"), delta("c", finish=FinishReason.STOP)
    assert merge(merge(a, b), c) == merge(a, merge(b, c)) == delta("abc", finish=FinishReason.STOP)


def test_merging_without_logprobs_has_none() -> None:
    plain = OutputDelta(0, "x", (1,))
    assert merge(plain, plain) == OutputDelta(0, "xx", (1, 1))


@pytest.mark.parametrize("kind", [OutputKind.CUMULATIVE, OutputKind.FINAL_ONLY])
def test_later_cumulative_output_replaces_the_earlier(kind: OutputKind) -> None:
    assert merge(delta("a"), delta("ab"), kind) == delta("ab")


def test_different_outputs_and_anything_after_the_end_cannot_be_merged() -> None:
    with pytest.raises(InternalError):
        merge(delta("a", 0), delta("b", 1))
    with pytest.raises(InternalError):
        merge(delta("a", finish=FinishReason.STOP), delta("b"))


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=3), st.booleans()), max_size=40))
@settings(max_examples=30, deadline=None)
def test_buffer_keeps_outputs_apart_and_loses_nothing(
    actions: list[tuple[int, str, bool]],
) -> None:
    buffer = DeltaBuffer()
    sent = dict.fromkeys(range(3), "")
    taken = dict.fromkeys(range(3), "")
    for index, text, take in actions:
        buffer.put(delta(text, index))
        sent[index] += text
        if take and (piece := buffer.take_nowait()):
            taken[piece.index] += piece.text
    assert len(buffer) <= 3
    while piece := buffer.take_nowait():
        taken[piece.index] += piece.text
    assert taken == sent
    assert buffer.num_bytes == 0


def test_buffer_of_cumulative_outputs_holds_one_of_each() -> None:
    buffer = DeltaBuffer(OutputKind.CUMULATIVE)
    for length in range(1, 100):
        buffer.put(delta("x" * length))
    assert buffer.num_bytes == num_bytes(delta("x" * 99))
    assert buffer.take_nowait() == delta("x" * 99)
    assert buffer.take_nowait() is None


def test_size_counts_bytes_of_text_tokens_and_logprobs() -> None:
    bare = num_bytes(OutputDelta(0, "", ()))
    assert num_bytes(OutputDelta(0, "日本", ())) == bare + 6
    assert num_bytes(OutputDelta(0, "", (1, 2))) == bare + 16
    assert num_bytes(delta("ab")) > num_bytes(OutputDelta(0, "ab", (1, 2)))
