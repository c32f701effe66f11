"""A request ends exactly once, and its credit comes back when its scope is left."""

import pytest

from triolet.errors import InternalError
from triolet.output import OutputDelta, TokenLogprobs, Usage
from triolet.request import GenerationRequest, RequestId
from triolet.sampling_params import SamplingParams
from triolet.tracker.admission import Admission
from triolet.tracker.registry import Registry, RequestEntry
from triolet.tracker.request_state import RequestState


class NullSink:
    def start(self, cached_tokens: int) -> None: ...
    def put(self, delta: OutputDelta) -> None: ...
    def score_prompt(self, logprobs: tuple[TokenLogprobs | None, ...]) -> None: ...
    def finish(self, usage: Usage) -> None: ...
    def fail(self, error: Exception) -> None: ...


def make_entry(admission: Admission, name: str = "a") -> RequestEntry:
    request = GenerationRequest(RequestId(name), (1, 2, 3), SamplingParams(seed=1), 0.0)
    return RequestEntry(request, NullSink(), admission.reserve(3, now=0.0))


def test_the_first_end_wins_and_is_told_once() -> None:
    told: list[tuple[str, str | None]] = []
    registry = Registry(lambda entry: told.append((entry.request_id, entry.cause)))
    entry = make_entry(Admission(4, 100))
    registry.open(entry)
    assert registry.end(entry, RequestState.CANCELLED, "left")
    assert not registry.end(entry, RequestState.FAILED, "late")
    assert entry.state is RequestState.CANCELLED
    assert told == [("a", "left")]
    assert registry.ended == {(RequestState.CANCELLED, "left"): 1}


def test_forgetting_gives_the_credit_back_once() -> None:
    admission = Admission(1, 100)
    registry = Registry(lambda entry: None)
    entry = make_entry(admission)
    registry.open(entry)
    registry.end(entry, RequestState.FAILED, "x")
    registry.forget(entry, now=1.0)
    registry.forget(entry, now=1.0)
    assert len(registry) == 0
    assert admission.statistics().live_requests == 0


def test_a_live_request_cannot_be_forgotten() -> None:
    registry = Registry(lambda entry: None)
    entry = make_entry(Admission(1, 100))
    registry.open(entry)
    with pytest.raises(AssertionError):
        registry.forget(entry, now=1.0)


def test_an_id_cannot_be_used_twice_at_a_time() -> None:
    registry = Registry(lambda entry: None)
    admission = Admission(2, 100)
    registry.open(make_entry(admission))
    with pytest.raises(InternalError, match="in use"):
        registry.open(make_entry(admission))


def test_a_finished_request_cannot_start_again() -> None:
    entry = make_entry(Admission(1, 100))
    registry = Registry(lambda entry: None)
    registry.open(entry)
    entry.advance(RequestState.QUEUED)
    entry.advance(RequestState.RUNNING)
    registry.end(entry, RequestState.FINISHED, "finished")
    with pytest.raises(InternalError):
        entry.advance(RequestState.RUNNING)
