"""The stream of one request: what a caller iterates.

It is the library's `Sink`: the dispatcher puts deltas into it, synchronously. Deltas that the
consumer has not taken are merged per output, so that a slow consumer costs one piece per
output, and never slows a step.
"""

from __future__ import annotations

from typing import Self

import trio

from triolet.dispatcher.backpressure import DeltaBuffer
from triolet.engine.life import RequestLife
from triolet.errors import InternalError, RequestCancelled
from triolet.output import OutputDelta, Sink, TokenLogprobs, Usage
from triolet.request import FinishReason, RequestId
from triolet.sampling_params import OutputKind, SamplingParams


class RequestStream:
    """Outputs of one request, in order, as an async iterator.

    Made by `Engine.generate`; leaving that block ends the request.
    """

    def __init__(
        self,
        request_id: RequestId,
        prompt_token_ids: tuple[int, ...],
        sampling: SamplingParams,
        life: RequestLife,
        sink: Sink | None,
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.sampling = sampling
        self._life = life
        self._sink = sink
        self._pending = DeltaBuffer(sampling.output_kind)
        self._usage: Usage | None = None
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._delivered: dict[int, int] = {}
        self._error: Exception | None = None
        self._changed = trio.Event()
        self._prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        self.finish_reasons: dict[int, FinishReason] = {}

    # The consumer's side.

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OutputDelta:
        """The next piece of any output. A checkpoint; cancelled, nothing is lost.

        Raises:
            StopAsyncIteration: Every output has ended.
            RequestFailed, EngineDead: The request failed.
        """
        if self._sink is not None:
            raise InternalError("the outputs of this request go to its own sink")
        await trio.lowlevel.checkpoint()
        while (delta := self._pending.take_nowait()) is None:
            if self._error is not None:
                raise self._error
            if self._usage is not None:
                raise StopAsyncIteration
            await self._changed.wait()
        return delta

    async def text(self, index: int = 0) -> str:
        """Read to the end and return the text of one output. A checkpoint.

        Raises:
            RequestFailed, EngineDead: The request failed.
        """
        pieces: list[str] = []
        async for delta in self:
            if delta.index == index:
                if self.sampling.output_kind is not OutputKind.DELTA:
                    pieces.clear()
                pieces.append(delta.text)
        return "".join(pieces)

    async def wait_finished(self) -> Usage:
        """Wait until every output has ended, without taking any. A checkpoint.

        Raises:
            RequestFailed, EngineDead: The request failed.
        """
        await trio.lowlevel.checkpoint()
        while self._usage is None:
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        return self._usage

    @property
    def usage(self) -> Usage:
        """Tokens used so far; final after the last output."""
        if self._usage is not None:
            return self._usage
        return Usage(len(self.prompt_token_ids), self._completion_tokens, self._cached_tokens)

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...] | None:
        """Of the whole prompt, once they are there; the first position has none."""
        return self._prompt_logprobs

    @property
    def finished(self) -> bool:
        """Whether every output has ended, or the request has failed."""
        return self._usage is not None or self._error is not None

    # The dispatcher's side: `Sink`.

    def start(self, cached_tokens: int) -> None:
        """See `Sink`."""
        self._cached_tokens = cached_tokens
        self._life.started(cached_tokens)
        if self._sink is not None:
            self._sink.start(cached_tokens)

    def put(self, delta: OutputDelta) -> None:
        """See `Sink`."""
        new_tokens = len(delta.token_ids)
        if self.sampling.output_kind is not OutputKind.DELTA:
            # Each piece holds all tokens so far.
            new_tokens -= self._delivered.get(delta.index, 0)
            self._delivered[delta.index] = len(delta.token_ids)
        self._life.delivered(delta.index, new_tokens)
        self._completion_tokens += new_tokens
        if delta.finish_reason is not None:
            self.finish_reasons[delta.index] = delta.finish_reason
        if self._sink is not None:
            self._sink.put(delta)
            return
        self._pending.put(delta)
        self._wake()

    def score_prompt(self, logprobs: tuple[TokenLogprobs | None, ...]) -> None:
        """See `Sink`."""
        self._prompt_logprobs = logprobs
        if self._sink is not None:
            self._sink.score_prompt(logprobs)

    def finish(self, usage: Usage) -> None:
        """See `Sink`."""
        self._usage = usage
        first = min(self.finish_reasons, default=None)
        self._life.finished(usage, None if first is None else self.finish_reasons[first])
        self._wake()  # first: a sink of the caller's may raise
        if self._sink is not None:
            self._sink.finish(usage)

    def fail(self, error: Exception) -> None:
        """See `Sink`."""
        self._error = error
        self._life.failed(error)
        self._wake()
        if self._sink is not None:
            self._sink.fail(error)

    def close(self) -> None:
        """The request's block was left: whoever still reads learns it. Idempotent."""
        if not self.finished:
            self._error = RequestCancelled("the block of this request was left before its end")
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
