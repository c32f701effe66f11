"""Facts in, calls of sinks and replies out."""

import pytest

from support.text import RecordingSink
from triolet.dispatcher.output_table import DispatcherReply, OutputTable, error_of
from triolet.errors import (
    EngineDead,
    InternalError,
    PoisonRequest,
    PromptTooLong,
    RequestFailed,
)
from triolet.messages.dispatcher_to_scheduler import SinkFailed, StopMatched
from triolet.messages.scheduler_to_dispatcher import (
    PromptScored,
    RequestErrored,
    RequestFinished,
    RequestStarted,
    SchedulerFact,
    TokensSampled,
)
from triolet.output import OutputDelta, TokenLogprobs, Usage
from triolet.request import FinishReason, GenerationRequest, RequestId
from triolet.sampling_params import OutputKind, SamplingParams
from triolet.tokenizer.byte_tokenizer import ByteTokenizer

A, B = RequestId("a"), RequestId("b")
BYTES = ByteTokenizer()


def request(
    request_id: RequestId = A, *, prefix: tuple[int, ...] = (), **sampling: object
) -> GenerationRequest:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]  # any of its fields
    return GenerationRequest(request_id, (1, 2, 3), params, 0.0, prefix=prefix)


def opened(
    request_id: RequestId = A, *, prefix: tuple[int, ...] = (), **sampling: object
) -> tuple[OutputTable, RecordingSink]:
    table, sink = OutputTable(BYTES), RecordingSink()
    table.open(request(request_id, prefix=prefix, **sampling), sink)
    return table, sink


def tokens(text: str, request_id: RequestId = A, index: int = 0) -> TokensSampled:
    return TokensSampled(request_id, index, tuple(BYTES.encode(text)))


def end(
    position: int,
    reason: FinishReason = FinishReason.LENGTH,
    request_id: RequestId = A,
    index: int = 0,
) -> RequestFinished:
    return RequestFinished(request_id, index, reason, None, position)


def turn(table: OutputTable, *facts: SchedulerFact) -> list[DispatcherReply]:
    """One turn: every fact is applied, then all is released."""
    for fact in facts:
        table.apply(fact)
    return table.release()


def test_request_from_start_to_finish() -> None:
    table, sink = opened()
    assert turn(table, RequestStarted(A, 2), tokens("a")) == []
    assert turn(table, tokens("bc"), end(3)) == []
    assert sink.calls == ["start", "put", "put", "finish"]
    assert sink.deltas == [
        OutputDelta(0, "a", (97,)),
        OutputDelta(0, "bc", (98, 99), finish_reason=FinishReason.LENGTH),
    ]
    assert sink.usage == Usage(prompt_tokens=3, completion_tokens=3, cached_tokens=2)
    assert table.statistics().requests == 0


def test_stop_string_ends_the_output_and_tells_the_scheduler_where() -> None:
    table, sink = opened(stop=["\n\n"])
    assert turn(table, tokens("x\n")) == []
    assert turn(table, tokens("\nyz")) == [StopMatched(A, 0, 3)]
    assert (sink.text(), sink.last().stop_reason) == ("x", "\n\n")
    assert sink.usage == Usage(3, 3)
    assert turn(table, tokens("more"), end(7)) == []
    assert sink.calls == ["put", "put", "finish"]
    assert table.statistics().facts_dropped == 2


def test_of_two_ends_in_one_turn_the_earlier_wins() -> None:
    """A stop string at token 2, `max_tokens` at 4; then the other way round."""
    table, sink = opened(stop=["b"])
    assert turn(table, tokens("abcd"), end(4)) == []
    assert (sink.text(), sink.usage) == ("a", Usage(3, 2))
    table, sink = opened(stop=["d"])
    assert turn(table, tokens("abcd"), end(2)) == []
    assert (sink.text(), sink.last().finish_reason) == ("ab", FinishReason.LENGTH)


def test_outputs_end_apart_and_the_request_with_the_last() -> None:
    table, sink = opened(n=3)
    turn(table, tokens("a", index=2), tokens("b", index=0))
    turn(table, end(1, index=0), end(1, index=2))
    assert "finish" not in sink.calls
    turn(table, tokens("c", index=1), end(1, FinishReason.CANCELLED, index=1))
    assert sink.calls[-1] == "finish"
    assert [sink.text(index) for index in range(3)] == ["b", "c", "a"]
    assert sink.last(1).finish_reason is FinishReason.CANCELLED
    assert sink.usage == Usage(3, 3)


def test_sibling_cancelled_before_its_first_token_ends_too() -> None:
    table, sink = opened(n=2, keep=1)
    turn(table, tokens("a"), end(1), end(0, FinishReason.CANCELLED, index=1))
    assert sink.last(1) == OutputDelta(1, "", (), finish_reason=FinishReason.CANCELLED)
    assert sink.calls == ["put", "put", "finish"]


def test_output_kinds_say_new_all_or_only_the_last() -> None:
    texts: dict[OutputKind, list[str]] = {}
    for kind in OutputKind:
        table, sink = opened(output_kind=kind)
        for char in "abc":
            turn(table, tokens(char))
        turn(table, end(3))
        texts[kind] = [delta.text for delta in sink.deltas]
    assert texts == {
        OutputKind.DELTA: ["a", "b", "c", ""],
        OutputKind.CUMULATIVE: ["a", "ab", "abc", "abc"],
        OutputKind.FINAL_ONLY: ["abc"],
    }


def test_cumulative_text_is_cut_at_a_stop_string() -> None:
    table, sink = opened(stop=["cd"], output_kind=OutputKind.CUMULATIVE)
    turn(table, tokens("ab"))
    turn(table, tokens("cd"))
    assert [delta.text for delta in sink.deltas] == ["ab", "ab"]
    assert sink.deltas[-1].token_ids == (97, 98, 99, 100)


def test_prompt_logprobs_reach_the_sink() -> None:
    table, sink = opened(prompt_logprobs=0)
    scored = (None, TokenLogprobs(2, -1.0, 1))
    turn(table, PromptScored(A, scored))
    assert sink.prompt_logprobs == scored


def test_resume_counts_its_prefix_and_does_not_repeat_it() -> None:
    table, sink = opened(prefix=tuple(BYTES.encode("abc")), stop=["cd"])
    assert turn(table, tokens("d")) == [StopMatched(A, 0, 4)]
    assert (sink.text(), sink.token_ids()) == ("", [100])
    assert sink.usage == Usage(3, 4)


class TestFailures:
    """What goes wrong with one request stays with it."""

    def two(self) -> tuple[OutputTable, RecordingSink, RecordingSink]:
        table, broken = opened(A)
        sound = RecordingSink()
        table.open(request(B), sound)
        return table, broken, sound

    @pytest.mark.parametrize("method", ["start", "put", "score_prompt", "finish"])
    def test_sink_that_raises_ends_its_own_request(self, method: str) -> None:
        table, broken, sound = self.two()
        broken.raises_in = frozenset({method})
        replies = turn(
            table,
            RequestStarted(A, 0),
            PromptScored(A, ()),
            *(tokens("x", A), end(1, request_id=A)),
            *(tokens("y", B), end(1, request_id=B)),
        )
        assert replies == [SinkFailed(A)]
        assert broken.calls[-2:] == [method, "fail"]
        assert isinstance(broken.error, RequestFailed)
        assert str(broken.error.__cause__) == f"broken {method}"
        assert (sound.text(), sound.calls) == ("y", ["put", "finish"])
        assert table.statistics().requests == 0
        assert table.statistics().sinks_failed == 1

    def test_sink_that_raises_twice_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        table, broken, sound = self.two()
        broken.raises_in = frozenset({"put", "fail"})
        assert turn(table, tokens("x", A), tokens("y", B)) == [SinkFailed(A)]
        assert "sink of request a failed twice" in caplog.text
        assert sound.text() == "y"

    @pytest.mark.parametrize(
        "fact",
        [
            TokensSampled(A, 7, (1,)),
            RequestFinished(A, 0, FinishReason.STOP, None, 5),
            TokensSampled(A, 0, (999,)),
        ],
        ids=["no such output", "tokens that never came", "no such token"],
    )
    def test_facts_that_cannot_be_end_their_own_request(self, fact: SchedulerFact) -> None:
        table, broken, sound = self.two()
        assert turn(table, fact, tokens("y", B)) == [SinkFailed(A)]
        assert broken.calls == ["fail"]
        assert isinstance(broken.error, InternalError)
        assert sound.text() == "y"

    def test_failed_request_gets_its_held_text_and_the_error_of_the_code(self) -> None:
        table, sink = opened(stop=["<|end|>"])
        turn(table, tokens("a"))
        assert turn(table, tokens("b<|"), RequestErrored(A, "poison_request", "bad")) == []
        assert sink.text() == "ab<|"
        assert sink.last().finish_reason is None
        assert isinstance(sink.error, PoisonRequest)
        assert sink.error.message == "bad"
        assert sink.calls[-1] == "fail"
        assert turn(table, tokens("c")) == []

    def test_death_of_the_engine_reaches_every_request_once(self) -> None:
        table, first, second = self.two()
        death = EngineDead("the runner is gone")
        death.__cause__ = OSError("signal 9")
        table.apply(tokens("x", A))
        table.fail_all(death)
        assert first.text() == "x"
        for sink in (first, second):
            assert isinstance(sink.error, EngineDead)
            assert sink.error is not death, "an exception belongs to one task"
            assert sink.error.__cause__ is death.__cause__
            assert sink.calls.count("fail") == 1
        table.fail_all(death)
        assert table.release() == []
        assert first.calls.count("fail") == 1

    def test_codes_name_their_classes(self) -> None:
        assert type(error_of("context_length_exceeded", "m")) is PromptTooLong
        assert type(error_of("internal_error", "m")) is InternalError
        other = error_of("row_was_nan", "m")
        assert (type(other), other.code, other.message) == (RequestFailed, "row_was_nan", "m")


class TestEnding:
    def test_closed_request_gets_nothing_more(self) -> None:
        table, sink = opened()
        table.apply(tokens("a"))
        table.close(A)
        table.close(A)
        assert table.release() == []
        assert turn(table, tokens("b"), end(2)) == []
        assert sink.calls == []
        assert table.statistics().facts_dropped == 2

    def test_sink_may_close_its_request_while_it_is_called(self) -> None:
        table, sink = opened(n=2)
        sink.on_put = lambda: table.close(A)
        turn(table, tokens("a"), end(1), tokens("b", index=1), end(1, index=1))
        assert sink.calls == ["put"]

    def test_conclude_delivers_what_is_held_and_finishes(self) -> None:
        table, sink = opened(n=2, stop=["!!"])
        turn(table, tokens("a!"))
        table.conclude(A, FinishReason.TIMEOUT)
        assert sink.text() == "a!"
        assert [sink.last(i).finish_reason for i in range(2)] == [FinishReason.TIMEOUT] * 2
        assert sink.usage == Usage(3, 2)
        table.conclude(A, FinishReason.TIMEOUT)
        assert sink.calls.count("finish") == 1

    def test_request_cannot_be_open_twice(self) -> None:
        table, _ = opened()
        with pytest.raises(InternalError, match="open already"):
            table.open(request(), RecordingSink())

    def test_usage_counts_while_it_runs(self) -> None:
        table, _ = opened()
        turn(table, tokens("ab"))
        assert table.usage(A) == Usage(3, 2)
        assert table.usage(B) is None


def test_release_in_slices_delivers_all_and_each_once() -> None:
    table = OutputTable(BYTES)
    sinks = [RecordingSink() for _ in range(10)]
    for number, sink in enumerate(sinks):
        table.open(request(RequestId(str(number))), sink)
        table.apply(tokens("x", RequestId(str(number))))
    slices = 0
    while table.has_unreleased:
        table.release(3)
        slices += 1
        table.close(RequestId("9"))
    assert slices == 4
    assert [sink.text() for sink in sinks] == ["x"] * 9 + [""]


def test_turns_that_were_not_released_add_up() -> None:
    table, sink = opened()
    for char in "abc":
        table.apply(tokens(char))
    table.release()
    assert sink.deltas == [OutputDelta(0, "abc", (97, 98, 99))]
