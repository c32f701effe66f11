"""One output against an oracle that sees all of it at once."""

import attrs
import pytest
from hypothesis import given, settings, strategies as st

from support.text import byte_fallback_tokenizer, byte_level_tokenizer
from triolet.dispatcher.sequence_output import SequenceOutput
from triolet.errors import InternalError
from triolet.messages.scheduler_to_dispatcher import RequestFinished, TokensSampled
from triolet.output import OutputDelta, TokenLogprobs
from triolet.request import FinishReason, RequestId
from triolet.sampling_params import OutputKind, SamplingParams
from triolet.tokenizer.byte_tokenizer import ByteTokenizer
from triolet.tokenizer.tokenizer import Tokenizer

ID = RequestId("r")
BYTES = ByteTokenizer()
TOKENIZERS: list[Tokenizer] = [BYTES, byte_level_tokenizer(), byte_fallback_tokenizer()]
EOS = 256


def output_of(sampling: SamplingParams, tokenizer: Tokenizer = BYTES) -> SequenceOutput:
    detokenizer = tokenizer.detokenizer(skip_special_tokens=sampling.skip_special_tokens)
    return SequenceOutput(0, detokenizer, sampling)


def sampled(token_ids: list[int], *, logprobs: bool = False) -> TokensSampled:
    reported = tuple(TokenLogprobs(i, -float(i), 1) for i in token_ids) if logprobs else None
    return TokensSampled(ID, 0, tuple(token_ids), reported)


def finished(
    position: int, reason: FinishReason = FinishReason.LENGTH, *, drop: bool = False
) -> RequestFinished:
    return RequestFinished(ID, 0, reason, None, position, drop)


def text_tokens(text: str) -> list[int]:
    return BYTES.encode(text)


@attrs.frozen
class Expected:
    """What an output must come to."""

    text: str
    num_tokens: int
    reason: FinishReason
    stop: str | None


def expected_of(
    tokenizer: Tokenizer, token_ids: list[int], end: RequestFinished, sampling: SamplingParams
) -> Expected:
    """Decode token by token, look for the first stop string in the text of the whole."""
    detokenizer = tokenizer.detokenizer(skip_special_tokens=sampling.skip_special_tokens)
    num = end.num_output_tokens
    decoded = token_ids[: num - 1] if end.drop_stop_token else token_ids[:num]
    pieces = [detokenizer.push(token_id) for token_id in decoded]
    if pieces:
        pieces[-1] += detokenizer.flush()
    text, behind = "".join(pieces), 0
    for count, piece in enumerate(pieces, start=1):
        for position in range(behind + 1, behind + len(piece) + 1):
            for stop in sampling.stop:
                if count > sampling.min_tokens and text[:position].endswith(stop):
                    cut = position if sampling.include_stop_str_in_output else position - len(stop)
                    return Expected(text[:cut], count, FinishReason.STOP, stop)
        behind += len(piece)
    return Expected(text, num, end.reason, None)


@st.composite
def cases(
    draw: st.DrawFn,
) -> tuple[Tokenizer, list[int], list[int], RequestFinished, SamplingParams]:
    """(tokenizer, tokens, sizes of the steps they come in, end, sampling)."""
    tokenizer = draw(st.sampled_from(TOKENIZERS))
    text = draw(st.text(alphabet="ab\ufffdé日😀 ", min_size=1, max_size=14))
    token_ids = tokenizer.encode(text)[: draw(st.integers(1, 40))]
    stops = draw(st.lists(st.text(alphabet="abé日 ", min_size=1, max_size=3), max_size=3))
    sampling = SamplingParams(
        stop=stops,
        include_stop_str_in_output=draw(st.booleans()),
        min_tokens=draw(st.integers(0, 6)),
        logprobs=draw(st.sampled_from([None, 0])),
        output_kind=draw(st.sampled_from(list(OutputKind))),
        skip_special_tokens=draw(st.booleans()),
    )
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=len(token_ids)))
    position = draw(st.integers(1, len(token_ids)))
    end = finished(position, drop=draw(st.booleans()))
    return tokenizer, token_ids, sizes, end, sampling


def run(
    output: SequenceOutput,
    token_ids: list[int],
    sizes: list[int],
    end: RequestFinished,
    *,
    logprobs: bool,
) -> list[OutputDelta]:
    """Send the tokens in steps of these sizes; the end comes in the step that holds it."""
    deltas: list[OutputDelta] = []
    sent, step = 0, 0
    while not output.finished:
        size = sizes[step % len(sizes)]
        output.receive(sampled(token_ids[sent : sent + size], logprobs=logprobs))
        sent, step = sent + size, step + 1
        if sent >= end.num_output_tokens:
            output.end(end)
        if delta := output.release():
            deltas.append(delta)
    return deltas


def check_deltas(
    case: tuple[Tokenizer, list[int], list[int], RequestFinished, SamplingParams],
) -> None:
    """Assert that the deltas of one case come to what the oracle expects."""
    tokenizer, token_ids, sizes, end, sampling = case
    expected = expected_of(tokenizer, token_ids, end, sampling)
    output = output_of(sampling, tokenizer)
    deltas = run(output, token_ids, sizes, end, logprobs=sampling.logprobs is not None)
    if sampling.output_kind is OutputKind.DELTA:
        text = "".join(delta.text for delta in deltas)
        released = [i for delta in deltas for i in delta.token_ids]
        reported = [entry for delta in deltas for entry in delta.logprobs or ()]
        pieces = "".join(piece for delta in deltas for piece in delta.token_texts or ())
    else:
        if sampling.output_kind is OutputKind.FINAL_ONLY:
            assert len(deltas) == 1
        text, released = deltas[-1].text, list(deltas[-1].token_ids)
        reported = list(deltas[-1].logprobs or ())
        pieces = "".join(deltas[-1].token_texts or ())
    last = deltas[-1]
    assert (text, last.finish_reason, last.stop_reason) == (
        expected.text,
        expected.reason,
        expected.stop,
    )
    assert released == token_ids[: expected.num_tokens]
    assert output.num_tokens == expected.num_tokens
    if sampling.logprobs is None:
        assert all(d.logprobs is None and d.token_texts is None for d in deltas)
    else:
        assert [entry.token_id for entry in reported] == released
        assert all(len(d.token_texts or ()) == len(d.token_ids) for d in deltas)
        assert pieces.startswith(text)


@given(cases())
@settings(max_examples=40, deadline=None)
def test_deltas_of_any_steps_come_to_the_same_output(
    case: tuple[Tokenizer, list[int], list[int], RequestFinished, SamplingParams],
) -> None:
    check_deltas(case)


@pytest.mark.slow
@given(cases())
@settings(max_examples=1000, deadline=None)
def test_deltas_of_many_more_steps_come_to_the_same_output(
    case: tuple[Tokenizer, list[int], list[int], RequestFinished, SamplingParams],
) -> None:
    check_deltas(case)


def test_tokens_of_a_character_come_out_together() -> None:
    output = output_of(SamplingParams())
    seen: list[tuple[str, int] | None] = []
    for token_id in text_tokens("a😀b"):
        output.receive(sampled([token_id]))
        delta = output.release()
        seen.append(None if delta is None else (delta.text, len(delta.token_ids)))
    assert seen == [("a", 1), None, None, None, ("😀", 4), ("b", 1)]


def test_tokens_of_a_held_character_are_held_together() -> None:
    output = output_of(SamplingParams(stop=["é!"]))
    output.receive(sampled(text_tokens("aé")))
    assert output.release() == OutputDelta(0, "a", (97,))
    output.receive(sampled(text_tokens("?")))
    assert output.release() == OutputDelta(0, "é?", (0xC3, 0xA9, 63))


def test_only_a_possible_beginning_of_a_stop_string_is_held() -> None:
    output = output_of(SamplingParams(stop=["<|x|>"]))
    seen: list[str | None] = []
    for token_id in text_tokens("a<|y<<|x|"):
        output.receive(sampled([token_id]))
        delta = output.release()
        seen.append(None if delta is None else delta.text)
    assert seen == ["a", None, None, "<|y", None, "<", None, None, None]
    assert output.conclude(FinishReason.TIMEOUT).text == "<|x|"


def test_token_of_several_characters_is_held_whole() -> None:
    """A marker that is one token arrives in one piece, whatever stop strings there are."""
    output = output_of(SamplingParams(stop=["|>>"], skip_special_tokens=False))
    output.receive(sampled([EOS]))
    assert output.release() is None
    output.receive(sampled(text_tokens("x")))
    delta = output.release()
    assert delta is not None
    assert (delta.text, delta.token_ids) == ("<|endoftext|>x", (EOS, ord("x")))


def test_text_of_a_dropped_stop_token_never_shows_but_the_token_counts() -> None:
    output = output_of(SamplingParams(skip_special_tokens=False, logprobs=0))
    output.receive(sampled([*text_tokens("hi"), EOS], logprobs=True))
    output.end(finished(3, FinishReason.STOP, drop=True))
    delta = output.release()
    assert delta is not None
    assert (delta.text, delta.token_ids) == ("hi", (104, 105, EOS))
    assert delta.token_texts == ("h", "i", "")
    assert len(delta.logprobs or ()) == 3


def test_dropped_stop_token_comes_behind_the_rest_of_a_character() -> None:
    output = output_of(SamplingParams(logprobs=0))
    output.receive(sampled([0xE2, EOS], logprobs=True))
    output.end(finished(2, FinishReason.STOP, drop=True))
    delta = output.release()
    assert delta is not None
    assert delta.token_texts == ("\ufffd", "")


def test_stop_string_before_an_end_wins_and_later_tokens_are_void() -> None:
    output = output_of(SamplingParams(stop=["."]))
    output.receive(sampled(text_tokens("a.bcd")))
    output.end(finished(5))
    delta = output.release()
    assert delta == OutputDelta(0, "a", (97, 46), finish_reason=FinishReason.STOP, stop_reason=".")
    assert not output.ended_by_text, "the scheduler knows of an end already"


def test_stop_string_counts_only_behind_min_tokens() -> None:
    output = output_of(SamplingParams(stop=["."], min_tokens=2))
    output.receive(sampled(text_tokens("a.b.")))
    delta = output.release()
    assert delta is not None
    assert (delta.text, len(delta.token_ids)) == ("a.b", 4)
    output = output_of(SamplingParams(stop=["."], min_tokens=1))
    output.receive(sampled(text_tokens("a.b.")))
    delta = output.release()
    assert delta is not None
    assert (delta.text, len(delta.token_ids)) == ("a", 2)


def test_end_before_a_stop_string_wins() -> None:
    output = output_of(SamplingParams(stop=["."]))
    output.receive(sampled(text_tokens("ab.c")))
    output.end(finished(2))
    delta = output.release()
    assert delta == OutputDelta(0, "ab", (97, 98), finish_reason=FinishReason.LENGTH)


def test_stop_string_found_alone_is_news_for_the_scheduler() -> None:
    output = output_of(SamplingParams(stop=["."]))
    output.receive(sampled(text_tokens("a.b")))
    assert output.release() is not None
    assert output.ended_by_text
    assert output.num_tokens == 2


def test_end_that_was_passed_or_not_reached_is_a_bug() -> None:
    output = output_of(SamplingParams())
    output.receive(sampled(text_tokens("abc")))
    output.release()
    for position in (2, 4):
        with pytest.raises(InternalError, match=f"ended at {position} tokens"):
            output.end(finished(position))


def test_missing_logprobs_are_a_bug() -> None:
    with pytest.raises(InternalError, match="2 tokens with None"):
        output_of(SamplingParams(logprobs=1)).receive(sampled([1, 2]))


class TestPrefix:
    """A resume: tokens already emitted elsewhere count, and are not delivered again."""

    def resumed(self, text: str, sampling: SamplingParams) -> SequenceOutput:
        return SequenceOutput(0, BYTES.detokenizer(), sampling, text_tokens(text))

    def test_only_what_follows_is_delivered(self) -> None:
        output = self.resumed("abc", SamplingParams(output_kind=OutputKind.CUMULATIVE))
        output.receive(sampled(text_tokens("de")))
        output.end(finished(5))
        delta = output.release()
        assert delta is not None
        assert (delta.text, delta.token_ids) == ("de", (100, 101))
        assert output.num_tokens == 5

    def test_character_begun_in_it_is_completed(self) -> None:
        output = SequenceOutput(0, BYTES.detokenizer(), SamplingParams(), [0xC3])
        output.receive(sampled([0xA9]))
        delta = output.release()
        assert delta is not None
        assert delta.text == "é"

    def test_stop_string_begun_in_it_is_found(self) -> None:
        output = self.resumed("xE", SamplingParams(stop=["END"]))
        output.receive(sampled(text_tokens("ND.")))
        assert output.release() == OutputDelta(
            0, "", (78, 68), finish_reason=FinishReason.STOP, stop_reason="END"
        )

    def test_stop_string_within_it_is_past(self) -> None:
        output = self.resumed("xEND", SamplingParams(stop=["END"]))
        output.receive(sampled(text_tokens("y")))
        assert output.release() == OutputDelta(0, "y", (121,))

    def test_min_tokens_count_it(self) -> None:
        output = self.resumed("abc", SamplingParams(stop=["d"], min_tokens=3))
        output.receive(sampled(text_tokens("d")))
        delta = output.release()
        assert delta is not None
        assert delta.stop_reason == "d"


def test_drain_gives_out_what_is_held_without_an_end() -> None:
    output = output_of(SamplingParams(stop=["<|"]))
    output.receive(sampled([*text_tokens("a<"), 0xE2]))
    assert output.drain() == OutputDelta(0, "a<\ufffd", (97, 60, 0xE2))


def test_conclude_honours_an_end_that_is_known() -> None:
    output = output_of(SamplingParams())
    output.receive(sampled(text_tokens("ab")))
    output.end(finished(1))
    assert output.conclude(FinishReason.TIMEOUT).finish_reason is FinishReason.LENGTH
