"""The object a caller holds: `generate`, `statistics`, `drain`.

A request's resources belong to the scope of `generate` and to nothing else. Everything that
gives them back is synchronous, so that no cancellation and no failure can come in between.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import attrs
import trio

from triolet.actor.channel import Channel
from triolet.actor.faultpoint import FaultPoints
from triolet.config import EngineConfig
from triolet.dispatcher.actor import OutputDispatcher
from triolet.engine.client import EngineStatistics, Health, Prompt, PromptOptions
from triolet.engine.grammar_gate import GrammarGate
from triolet.engine.input_processor import InputProcessor, check_arguments
from triolet.engine.life import RequestLife, cause_of
from triolet.engine.session import SessionStream, check_session, open_session
from triolet.engine.sight import EngineSight, Preparing
from triolet.engine.stream import RequestStream
from triolet.errors import EngineDead, InvalidRequest, NotServing, Rejected, TrioletError
from triolet.messages.engine_to_tracker import Submit
from triolet.messages.runner_to_scheduler import RunnerInfo
from triolet.model_source.facts import ModelFacts
from triolet.output import Sink
from triolet.request import FinishReason, GenerationRequest, RequestId, Timeouts
from triolet.sampling_params import SamplingParams
from triolet.scheduler.scheduler import Scheduler
from triolet.telemetry.metrics import Metrics
from triolet.tokenizer.tokenizer import Tokenizer
from triolet.tracker.admission import Admission, Reservation
from triolet.tracker.registry import Registry, RequestEntry
from triolet.tracker.request_state import RequestState


class Engine:
    """An open engine. Made by `open_engine`; works until that block is left.

    It implements `EngineClient`. Use it from tasks of the trio run that opened it.
    """

    def __init__(
        self,
        *,
        config: EngineConfig,
        facts: ModelFacts,
        tokenizer: Tokenizer,
        info: RunnerInfo,
        scheduler: Scheduler,
        input_processor: InputProcessor,
        grammars: GrammarGate,
        submit: Channel[Submit],
        registry: Registry,
        admission: Admission,
        dispatcher: OutputDispatcher,
        metrics: Metrics,
        faults: FaultPoints,
        id_prefix: str,
        sight: EngineSight,
    ) -> None:
        self._config = config
        self._facts = facts
        self._tokenizer = tokenizer
        self._info = info
        self._scheduler = scheduler
        self._input = input_processor
        self._grammars = grammars
        self._submit = submit
        self._registry = registry
        self._admission = admission
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._faults = faults
        self._id_prefix = id_prefix
        self._sight = sight
        self._numbers = itertools.count(1)
        self._scopes = 0
        self._preparing: set[Preparing] = set()
        self._draining = False
        self._closed = False
        self._death: EngineDead | None = None
        self._died = trio.Event()
        self._left = trio.Event()

    # What it is.

    @property
    def config(self) -> EngineConfig:
        """As resolved."""
        return self._config

    @property
    def facts(self) -> ModelFacts:
        """Of the model served."""
        return self._facts

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the model served. Its methods may take long: `tokenize` does not block the loop."""
        return self._tokenizer

    @property
    def info(self) -> RunnerInfo:
        """What the runner is: device, dtype, KV blocks, model length."""
        return self._info

    @property
    def max_model_len(self) -> int:
        """Longest context it runs."""
        return self._info.max_model_len

    @property
    def health(self) -> Health:
        """Its state now."""
        if self._death is not None:
            return Health.DEAD
        if self._draining or self._closed:
            return Health.DRAINING
        return self._sight.health()

    def statistics(self) -> EngineStatistics:
        """A moment in its life. Synchronous and cheap."""
        return self._sight.statistics(self.health, self._scopes, self._preparing)

    def metrics(self) -> bytes:
        """Prometheus text exposition of this engine's registry."""
        self._sight.set_gauges(self._scopes)
        return self._metrics.exposition()

    def default_sampling(self) -> SamplingParams:
        """What a request gets that says nothing about sampling: the model's own defaults."""
        return self._input.default_sampling()

    # What it does.

    async def tokenize(
        self, prompt: Prompt, options: PromptOptions | None = None
    ) -> tuple[int, ...]:
        """Token ids of a prompt, computed off the run loop. A checkpoint.

        Raises:
            InvalidRequest: The prompt is empty, far too long, or the template refuses it.
            QueueFull: The engine is full.
        """
        self._check_serving()
        reservation = self._reserve(prompt)
        token_ids = await self._tokenize_for(reservation, prompt, options or PromptOptions())
        reservation.release(trio.current_time())
        return token_ids

    @asynccontextmanager
    async def generate(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        deadline: float | None = None,
        timeouts: Timeouts | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str | None = None,
        label: str | None = None,
        prefix: Sequence[int] = (),
        sink: Sink | None = None,
        options: PromptOptions | None = None,
    ) -> AsyncGenerator[RequestStream]:
        """Open the scope of one request; see `EngineClient.generate`."""
        names = {"cache_salt": cache_salt, "tenant": tenant, "label": label}
        check_arguments(prompt, sampling, timeouts, deadline, priority, prefix, names)
        self._check_serving()
        arrival_time = trio.current_time()
        reservation = self._reserve(prompt)
        self._faults.hit("engine.after_reserve")
        self._scopes += 1
        preparing = Preparing(label, arrival_time, reservation.tokens)
        self._preparing.add(preparing)
        try:
            token_ids = await self._tokenize_for(reservation, prompt, options or PromptOptions())
            sampling = await self._prepare(reservation, sampling)
            self._preparing.discard(preparing)
            try:
                request = self._make_request(
                    token_ids,
                    sampling,
                    prefix=tuple(prefix),
                    arrival_time=arrival_time,
                    priority=priority,
                    cache_salt=cache_salt,
                    tenant=tenant,
                    label=label,
                    timeouts=self._timeouts(deadline, timeouts),
                )
                reservation.commit(len(token_ids))
                stream, life = self._open(request, reservation, sink)
            except Exception as error:
                reservation.release(trio.current_time())
                self._count_refusal(error)
                raise
            try:
                self._check_serving()  # it may have closed while the prompt was tokenized
                life.entry.advance(RequestState.QUEUED)
                self._faults.hit("engine.before_submit")
                await self._submit.send(Submit(request))
                yield stream
            finally:
                # Synchronous to the end: nothing can come between, and nothing waits.
                self._dispatcher.close(request.request_id)
                life.left(sys.exc_info()[1])
                stream.close()
        finally:
            if preparing in self._preparing:
                self._preparing.discard(preparing)
                if isinstance(left_by := sys.exc_info()[1], trio.Cancelled):
                    self._metrics.request_ended(RequestState.CANCELLED, cause_of(left_by))
            self._scopes -= 1
            self._left.set()

    def session(
        self,
        pieces: AsyncIterable[Prompt],
        sampling: SamplingParams | None = None,
        *,
        timeouts: Timeouts | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str | None = None,
        label: str | None = None,
    ) -> AbstractAsyncContextManager[SessionStream]:
        """Open a session: input that arrives in pieces extends one context.

        Every piece is answered as far as `sampling` says, with a `finish_reason` at its end;
        then the next piece is awaited. The answer stays in the context.

        Args:
            pieces: Texts or token ids; only the first gets the special tokens of a prompt.
            sampling: For every piece; one output, no stop strings.
            timeouts: For every piece.
            priority: See `generate`.
            cache_salt: See `generate`.
            tenant: See `generate`.
            label: See `generate`.

        Raises:
            InvalidRequest: A parameter makes no sense for a session.
        """
        sampling = sampling or self._input.default_sampling()
        check_session(sampling)

        async def tokenize(piece: Prompt, is_first: bool) -> tuple[int, ...]:
            return await self.tokenize(piece, PromptOptions(add_special_tokens=is_first))

        def open_request(context: tuple[int, ...]) -> AbstractAsyncContextManager[RequestStream]:
            return self.generate(
                context,
                sampling,
                timeouts=timeouts,
                priority=priority,
                cache_salt=cache_salt,
                tenant=tenant,
                label=label,
            )

        return open_session(pieces, tokenize, open_request)

    async def cancel(self, request_id: RequestId) -> bool:
        """End a request by its id; its outputs end where they are, as CANCELLED.

        Returns:
            False if there is no such live request.
        """
        entry = self._registry.get(request_id)
        if entry is None or not self._registry.end(entry, RequestState.CANCELLED, "cancel_call"):
            return False
        self._dispatcher.conclude(request_id, FinishReason.CANCELLED)
        return True

    async def drain(self, grace_s: float) -> int:
        """Admit nothing more, and wait for what is there; then fail the rest.

        Args:
            grace_s: How long to wait for requests to end by themselves.

        Returns:
            How many had to be failed, with `NotServing`.
        """
        self._draining = True
        with trio.move_on_after(grace_s):
            while self._scopes:
                self._left = trio.Event()
                await self._left.wait()
        return self._fail_all(NotServing("the server is shutting down; try again elsewhere"))

    async def wait_died(self) -> EngineDead:
        """Wait until the engine is dead, for a front end that must then stop. A checkpoint."""
        await self._died.wait()
        assert self._death is not None
        return self._death

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix. Requests that use some now keep their blocks."""
        self._scheduler.reset_prefix_cache()

    # For `open_engine`.

    def die(self, error: EngineDead) -> None:
        """Wake every waiter with this error, once; nothing is admitted any more."""
        if self._death is None:
            self._death = error
            self._fail_all(error)
            self._died.set()

    def close(self) -> None:
        """The block of `open_engine` was left."""
        self._closed = True
        self._fail_all(NotServing("the engine was closed"))

    @property
    def death(self) -> EngineDead | None:
        """Why it is dead, if it is."""
        return self._death

    # The parts of `generate`.

    def _check_serving(self) -> None:
        if self._death is not None:
            raise EngineDead(self._death.message) from self._death
        if self._closed:
            raise NotServing("this engine is closed: its open_engine block was left")
        if self._draining:
            raise NotServing("the server is shutting down; try again elsewhere", retry_after_s=1.0)

    def _reserve(self, prompt: Prompt) -> Reservation:
        try:
            tokens = self._input.estimate_tokens(prompt)
            return self._admission.reserve(tokens, trio.current_time())
        except Rejected as error:
            self._count_refusal(error)
            raise

    async def _tokenize_for(
        self,
        reservation: Reservation,
        prompt: Prompt,
        options: PromptOptions,
    ) -> tuple[int, ...]:
        """Tokenize under a reservation, which is given back if this fails.

        If it is cancelled, the thread goes on for a while: the reservation is kept until it
        has really ended, so that leaving clients cannot make work pile up unseen.
        """

        def give_back() -> None:
            reservation.release(trio.current_time())

        try:
            return await self._input.tokenize(prompt, self._info, options, on_abandoned=give_back)
        except Exception as error:
            give_back()
            self._count_refusal(error)
            raise

    async def _prepare(
        self, reservation: Reservation, sampling: SamplingParams | None
    ) -> SamplingParams:
        """Prove the grammar and tokenize the bad words, if there are any."""
        sampling = sampling or self._input.default_sampling()
        admitted = False
        try:
            if sampling.structured_outputs is not None:
                await self._grammars.prove(sampling.structured_outputs)
            sampling = self._input.tokenize_bad_words(sampling)
            admitted = True
        except Exception as error:
            self._count_refusal(error)
            raise
        finally:
            if not admitted:
                # What a cancelled proof used is gone with its process.
                reservation.release(trio.current_time())
        return sampling

    def _timeouts(self, deadline: float | None, timeouts: Timeouts | None) -> Timeouts:
        """The request's limits of time, with the configured defaults and maximum."""
        if deadline is not None and timeouts is not None:
            raise TypeError("give deadline or timeouts, not both")
        limits = self._config.limits
        if timeouts is None:
            timeouts = limits.timeouts()
            if deadline is not None:
                timeouts = attrs.evolve(timeouts, total=deadline)
        for name in ("total", "queue", "first_token"):
            value: float | None = getattr(timeouts, name)
            if value is not None and not 0 < value < math.inf:
                raise InvalidRequest(
                    f"a deadline ({name}) must be a positive number of seconds, got {value!r}",
                    param="deadline",
                )
        if limits.timeout_max_s is not None:
            if timeouts.total is not None and timeouts.total > limits.timeout_max_s:
                raise InvalidRequest(
                    f"a deadline can be at most {limits.timeout_max_s:g} s here "
                    f"(timeout_max_s), got {timeouts.total:g} s",
                    param="deadline",
                )
            if timeouts.total is None:
                timeouts = attrs.evolve(timeouts, total=limits.timeout_max_s)
        return timeouts

    def _make_request(
        self,
        token_ids: tuple[int, ...],
        sampling: SamplingParams | None,
        *,
        prefix: tuple[int, ...],
        arrival_time: float,
        priority: int,
        cache_salt: str | None,
        tenant: str | None,
        label: str | None,
        timeouts: Timeouts,
    ) -> GenerationRequest:
        policy = self._config.scheduler.scheduling_policy
        if priority and policy != "priority":
            raise InvalidRequest(
                f"priority {priority} has no effect under scheduling_policy={policy!r}; leave it 0, "
                "or start the engine with scheduling_policy='priority'",
                param="priority",
            )
        resolved = self._input.resolve(token_ids, sampling, prefix, self._info)
        self._scheduler.check_fits(len(token_ids), resolved, len(prefix))
        return GenerationRequest(
            request_id=RequestId(f"{self._id_prefix}-{next(self._numbers)}"),
            prompt_token_ids=token_ids,
            sampling=resolved,
            arrival_time=arrival_time,
            priority=priority,
            prefix=prefix,
            cache_salt=cache_salt,
            tenant=tenant,
            label=label,
            timeouts=timeouts,
        )

    def _open(
        self, request: GenerationRequest, reservation: Reservation, sink: Sink | None
    ) -> tuple[RequestStream, RequestLife]:
        life = RequestLife(self._registry, self._metrics)
        stream = RequestStream(
            request.request_id, request.prompt_token_ids, request.sampling, life, sink
        )
        entry = RequestEntry(request, stream, reservation)
        life.attach(entry)
        self._registry.open(entry)
        self._dispatcher.open(request, stream)
        return stream, life

    def _count_refusal(self, error: Exception) -> None:
        if isinstance(error, Rejected):
            self._metrics.request_refused(error.code)

    def _fail_all(self, error: TrioletError) -> int:
        """End every live request with an error; returns how many there were."""
        live = sum(not entry.state.is_final for entry in self._registry)
        self._dispatcher.fail_all(error)
        return live
