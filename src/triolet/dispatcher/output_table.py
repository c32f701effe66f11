"""Facts of the scheduler in, deltas into sinks, and what the scheduler must hear back.

`apply` only takes note; `release` decodes and delivers, with everything of the turn known: a
token that ends an output never shows in its text, and of two ends the earlier one wins (G2).
A fault of one request (its sink raises, its facts contradict each other) ends that request.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import assert_never

import attrs

from triolet.dispatcher.request_output import RequestOutput
from triolet.errors import (
    ClientStalled,
    DeadlineExceeded,
    EngineDead,
    InternalError,
    InvalidRequest,
    NotServing,
    PoisonRequest,
    PromptTooLong,
    QueueFull,
    RequestFailed,
    TrioletError,
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
from triolet.output import OutputDelta, Sink, Usage
from triolet.request import FinishReason, GenerationRequest, RequestId
from triolet.tokenizer.tokenizer import Tokenizer

_logger = logging.getLogger(__name__)

DispatcherReply = StopMatched | SinkFailed

_ERROR_CLASSES: dict[str, type[TrioletError]] = {
    error.code: error
    for error in (
        *(RequestFailed, DeadlineExceeded, ClientStalled, PoisonRequest),
        *(InvalidRequest, PromptTooLong, QueueFull, NotServing),
        *(EngineDead, InternalError),
    )
}


def error_of(code: str, message: str) -> TrioletError:
    """The exception of `errors.py` that has this code; RequestFailed for one it has not."""
    return _ERROR_CLASSES.get(code, RequestFailed)(message, code=code)


@attrs.frozen
class OutputStatistics:
    """What the table did so far.

    Attributes:
        requests: Requests open now.
        deltas: Deltas delivered.
        facts_dropped: Facts about requests or outputs that had ended.
        stops_matched: Outputs that the scheduler was told to stop.
        sinks_failed: Requests ended because their sink raised.
        requests_failed: Requests ended with an error of their own.
    """

    requests: int
    deltas: int
    facts_dropped: int
    stops_matched: int
    sinks_failed: int
    requests_failed: int


class OutputTable:
    """Every open request's outputs.

    Args:
        tokenizer: Of the model served.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._requests: dict[RequestId, RequestOutput] = {}
        self._dirty: deque[RequestOutput] = deque()
        self._replies: list[DispatcherReply] = []
        self._deltas = 0
        self._facts_dropped = 0
        self._stops_matched = 0
        self._sinks_failed = 0
        self._requests_failed = 0

    def open(self, request: GenerationRequest, sink: Sink) -> None:
        """Deliver the outputs of this request into `sink`, from now on.

        With `request.prefix`, positions and usage count its tokens as those of output 0,
        and nothing of them is delivered.

        Raises:
            InternalError: The request is open already.
        """
        if request.request_id in self._requests:
            raise InternalError(f"request {request.request_id} is open already")
        self._requests[request.request_id] = RequestOutput(request, sink, self._tokenizer)

    def close(self, request_id: RequestId) -> None:
        """Deliver nothing more of this request. An unknown or closed one is fine."""
        entry = self._requests.pop(request_id, None)
        if entry is not None:
            entry.closed = True
            entry.touched.clear()

    def conclude(self, request_id: RequestId, reason: FinishReason) -> None:
        """End every output of a request where it is; what is held back is delivered.

        An output whose end is known already keeps that end. An unknown or closed request is
        fine.
        """
        entry = self._requests.get(request_id)
        if entry is None:
            return
        try:
            deltas = [output.conclude(reason) for output in entry.unfinished()]
        except Exception as error:
            self._fail(entry, _bug(error))
            return
        if all(self._put(entry, delta) for delta in deltas):
            self._finish(entry)

    def fail(self, request_id: RequestId, error: TrioletError) -> bool:
        """End a request with an error, at once: what is held back is void.

        Returns:
            False if the request is not open.
        """
        entry = self._requests.get(request_id)
        if entry is None:
            return False
        self._fail(entry, error)
        return True

    def fail_all(self, error: TrioletError) -> None:
        """End every request with its own copy of an error; what is held back is delivered."""
        for entry in list(self._requests.values()):
            copy = type(error)(
                error.message,
                param=error.param,
                code=error.code,
                retry_after_s=error.retry_after_s,
            )
            copy.__cause__ = error.__cause__
            self._drain_and_fail(entry, copy)

    def usage(self, request_id: RequestId) -> Usage | None:
        """Tokens that an open request has used so far."""
        entry = self._requests.get(request_id)
        return None if entry is None else entry.usage

    def apply(self, fact: SchedulerFact) -> None:
        """Take note of a fact; `release` delivers what follows from it.

        Only what cannot be held back is delivered at once: the start, the log-probabilities
        of the prompt and a failure.
        """
        entry = self._requests.get(fact.request_id)
        if entry is None:
            self._facts_dropped += 1
            return
        match fact:
            case TokensSampled() | RequestFinished():
                self._note(entry, fact)
            case RequestStarted():
                if not entry.started:
                    entry.started = True
                    entry.cached_tokens = fact.cached_tokens
                    self._call(entry, lambda: entry.sink.start(fact.cached_tokens))
            case PromptScored():
                self._call(entry, lambda: entry.sink.score_prompt(fact.logprobs))
            case RequestErrored():
                self._requests_failed += 1
                self._drain_and_fail(entry, error_of(fact.code, fact.message))
            case _:
                assert_never(fact)

    def release(self, num_outputs_max: int | None = None) -> list[DispatcherReply]:
        """Deliver what the facts so far make certain.

        Args:
            num_outputs_max: Stop after about this many outputs; `has_unreleased` says
                whether there are more. Between two calls anything may be called, but facts
                of a later turn.

        Returns:
            What the scheduler must be told.
        """
        num_outputs = 0
        while self._dirty and (num_outputs_max is None or num_outputs < num_outputs_max):
            entry = self._dirty.popleft()
            touched, entry.touched = entry.touched, {}
            num_outputs += len(touched)
            for output in touched.values():
                try:
                    delta = output.release()
                except Exception as error:
                    self._replies.append(SinkFailed(entry.request.request_id))
                    self._fail(entry, _bug(error))
                    break
                if delta is None:
                    continue
                if output.ended_by_text:
                    self._stops_matched += 1
                    self._replies.append(
                        StopMatched(entry.request.request_id, output.index, output.num_tokens)
                    )
                if not self._put(entry, delta):
                    break
                if delta.finish_reason is not None and entry.all_finished:
                    self._finish(entry)
        replies, self._replies = self._replies, []
        return replies

    @property
    def has_unreleased(self) -> bool:
        """Whether facts were applied that `release` has not seen."""
        return bool(self._dirty)

    def statistics(self) -> OutputStatistics:
        """What it did so far."""
        return OutputStatistics(
            requests=len(self._requests),
            deltas=self._deltas,
            facts_dropped=self._facts_dropped,
            stops_matched=self._stops_matched,
            sinks_failed=self._sinks_failed,
            requests_failed=self._requests_failed,
        )

    def _note(self, entry: RequestOutput, fact: TokensSampled | RequestFinished) -> None:
        try:
            output = entry.output(fact.index)
            if output.finished:
                self._facts_dropped += 1
                return
            if isinstance(fact, TokensSampled):
                output.receive(fact)
            else:
                output.end(fact)
        except Exception as error:
            self._replies.append(SinkFailed(entry.request.request_id))
            self._fail(entry, _bug(error))
            return
        if not entry.touched:
            self._dirty.append(entry)
        entry.touched[fact.index] = output

    def _put(self, entry: RequestOutput, delta: OutputDelta) -> bool:
        """Deliver a delta; False if nothing more can be delivered to this request."""
        self._deltas += 1
        try:
            entry.sink.put(delta)
        except Exception as error:
            self._sink_failed(entry, error)
        return not entry.closed

    def _call(self, entry: RequestOutput, method: Callable[[], None]) -> None:
        try:
            method()
        except Exception as error:
            self._sink_failed(entry, error)

    def _finish(self, entry: RequestOutput) -> None:
        usage = entry.usage
        self.close(entry.request.request_id)
        try:
            entry.sink.finish(usage)
        except Exception as error:
            self._sink_failed(entry, error)

    def _sink_failed(self, entry: RequestOutput, error: Exception) -> None:
        """Its consumer is broken: end this request, and try to let the consumer know."""
        self._sinks_failed += 1
        self._replies.append(SinkFailed(entry.request.request_id))
        failure = RequestFailed(f"the consumer of the request failed: {error!r}")
        failure.__cause__ = error
        self._fail(entry, failure)

    def _drain_and_fail(self, entry: RequestOutput, error: TrioletError) -> None:
        """Deliver what the outputs hold back, then the error."""
        try:
            deltas = [output.drain() for output in entry.unfinished()]
        except Exception as bug:
            error.add_note(f"its last tokens could not be decoded: {bug!r}")
            deltas = []
        if all(self._put(entry, delta) for delta in deltas if delta is not None):
            self._fail(entry, error)

    def _fail(self, entry: RequestOutput, error: TrioletError) -> None:
        self.close(entry.request.request_id)
        try:
            entry.sink.fail(error)
        except Exception:
            _logger.exception("the sink of request %s failed twice", entry.request.request_id)


def _bug(error: Exception) -> TrioletError:
    """The failure that a request's consumer sees for a fault in triolet itself."""
    if isinstance(error, InternalError):
        return error
    failure = InternalError(f"the output could not be decoded: {error!r}")
    failure.__cause__ = error
    return failure
