"""`open_engine`: opens the channels, starts the actors bottom-up, and takes all down again.

    caller's nursery
    '- open_engine            service nursery: the body is cancelled first, the servants last
       |- OutputDispatcher
       |- DeviceRunner        owns one worker: a thread, or a process
       |- StepLoop            drives the Scheduler
       '- RequestTracker

An actor that fails takes no one down with it: the engine is declared dead, every waiter wakes
with `EngineDead`, and the block raises it when it is left.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import trio

from triolet.actor.end_marks import EndMarks
from triolet.actor.faultpoint import FaultPoints
from triolet.actor.supervisor import first_exception, open_service_nursery
from triolet.config import EngineConfig
from triolet.dispatcher.actor import OutputDispatcher
from triolet.engine.engine import Engine
from triolet.engine.grammar_gate import Answer, GrammarGate, answer_in_process
from triolet.engine.input_processor import InputProcessor
from triolet.engine.insides import EngineInsides
from triolet.engine.life import FINISHED
from triolet.engine.offload import Offload, ThreadOffload
from triolet.engine.sight import EngineSight
from triolet.engine.wiring import Wiring
from triolet.errors import ConfigError, EngineDead, RunnerStuck, TrioletError
from triolet.messages.runner_to_scheduler import RunnerInfo, RunnerReady
from triolet.model_source.facts import ModelFacts
from triolet.model_source.resolve import resolve
from triolet.request import RequestId
from triolet.runner.actor import DeviceRunner
from triolet.runner.process_transport import ProcessTransport, WorkerProcess, early_process
from triolet.runner.transport import ThreadTransport, Transport
from triolet.runner.worker import WorkerSpec
from triolet.scheduler.actor import StepLoop
from triolet.scheduler.scheduler import Scheduler
from triolet.telemetry.metrics import Metrics
from triolet.tokenizer.hf_tokenizer import load_tokenizer
from triolet.tokenizer.tokenizer import Tokenizer
from triolet.tracker.actor import RequestTracker
from triolet.tracker.admission import Admission
from triolet.tracker.registry import Registry, RequestEntry

log = logging.getLogger(__name__)

OFFLOAD_THREADS = 4
"""Tokenizing releases the GIL; more threads than this only fight for the cores."""


@attrs.frozen
class EngineParts:
    """What an engine is put together from; a test or a simulation brings its own.

    Attributes:
        facts: The model.
        tokenizer: Its tokenizer.
        transport: Opens the worker.
        offload: Where blocking work goes.
        rng: Draws the seeds of requests that bring none.
        id_prefix: Of request ids; unique per engine, so that logs of two can be told apart.
        secret: Keys the prefix cache.
        answer_grammar: Where grammars are proved acceptable.
        faults: Fault points, to be armed by a test.
        watch: Called with the insides before any actor starts, for a harness.
    """

    facts: ModelFacts
    tokenizer: Tokenizer
    transport: Transport
    offload: Offload
    rng: random.Random
    id_prefix: str
    secret: bytes
    answer_grammar: Answer = answer_in_process
    faults: FaultPoints = attrs.field(factory=FaultPoints)
    watch: Callable[[EngineInsides], None] | None = None


def _say_nothing(text: str) -> None:
    log.info("%s", text)


@asynccontextmanager
async def open_engine(
    model: str = "demo",
    *,
    config: EngineConfig | None = None,
    progress: Callable[[str], None] = _say_nothing,
    **settings: object,
) -> AsyncGenerator[Engine]:
    """Open an engine; it serves until the block is left, and leaves nothing behind.

    Works in any trio program, in any thread, any number of times. It installs no signal
    handler and no logging, and keeps no global.

    Args:
        model: Directory, hub id, GGUF file, "demo" or "tiny-random".
        config: Everything at once, instead of `model` and `settings`.
        progress: Told what the loading does, for people.
        **settings: Any field of the groups of `EngineConfig`, such as `max_num_seqs=8`.

    Yields:
        The engine, loaded and warm.

    Raises:
        TypeError: A setting has no such name.
        ConfigError: The model or a setting cannot be used; nothing is left running.
        EngineDead: On leaving: an actor failed and its failure was seen by nobody else.
    """
    if config is None:
        config = EngineConfig.of(model, **settings)
    elif settings:
        raise TypeError("give config or single settings, not both")
    async with AsyncExitStack() as stack:
        early: WorkerProcess | None = None
        if config.runner.runner == "process":
            # It imports while we look for the model, and loads while we read the tokenizer.
            early = await stack.enter_async_context(early_process())
        facts = await _resolve(config, progress)
        spec = WorkerSpec(config, facts)
        if early is not None:
            await early.set_up(spec)
        tokenizer = await trio.to_thread.run_sync(load_tokenizer, facts)
        parts = EngineParts(
            facts=facts,
            tokenizer=tokenizer,
            transport=ThreadTransport(spec) if early is None else ProcessTransport(spec, early),
            offload=ThreadOffload(OFFLOAD_THREADS),
            rng=random.Random(secrets.randbits(64)),
            id_prefix=f"req-{secrets.token_hex(4)}",
            secret=secrets.token_bytes(32),
        )
        async with open_engine_from_parts(config, parts, progress) as engine:
            yield engine


@asynccontextmanager
async def open_engine_from_parts(
    config: EngineConfig, parts: EngineParts, progress: Callable[[str], None] = _say_nothing
) -> AsyncGenerator[Engine]:
    """Open an engine put together from given parts; see `open_engine`."""
    house = _House(config, parts, progress)
    async with open_service_nursery() as nursery:
        for name, run in house.actors():
            nursery.start_soon(house.guard, name, run, name=f"triolet {name}")
        engine = await house.wait_open()
        try:
            yield engine
        finally:
            engine.close()
            nursery.cancel_scope.cancel(reason="the engine is closed")
    # The body went well although the engine did not: nobody may take that for success.
    if engine.death is not None:
        stuck = engine.death.__cause__
        raise stuck if isinstance(stuck, RunnerStuck) else engine.death


class _House:
    """The actors of one engine, wired together."""

    def __init__(
        self, config: EngineConfig, parts: EngineParts, progress: Callable[[str], None]
    ) -> None:
        self._config = config
        self._parts = parts
        wiring = Wiring.of(config)
        self._metrics = Metrics(parts.facts.name)
        self._marks = EndMarks(wiring.scheduler.wake)
        self._registry = Registry(self._on_end)
        self._admission = Admission(
            config.scheduler.max_live_requests, config.scheduler.max_queued_tokens
        )
        self._dispatcher = OutputDispatcher(
            wiring.dispatcher, wiring.scheduler, parts.tokenizer, parts.faults
        )
        self._tracker = RequestTracker(
            wiring.tracker,
            wiring.scheduler,
            self._registry,
            self._admission,
            self._has_tokens,
            self._dispatcher.conclude,
            self._dispatcher.fail,
            parts.faults,
        )
        self._runner = DeviceRunner(
            wiring.runner, wiring.scheduler, parts.transport, config.runner, progress, parts.faults
        )
        self._step_loop = StepLoop(
            wiring.scheduler,
            wiring.runner,
            wiring.dispatcher,
            self._marks,
            self._make_scheduler,
            parts.faults,
            self._metrics.iteration_tokens.observe,
        )
        self._sight = EngineSight(
            config,
            self._metrics,
            self._registry,
            self._tracker,
            self._step_loop,
            self._runner,
            self._dispatcher,
        )
        if parts.watch is not None:
            parts.watch(
                EngineInsides(
                    wiring,
                    self._marks,
                    self._registry,
                    self._admission,
                    self._tracker,
                    self._step_loop,
                    self._runner,
                    self._dispatcher,
                )
            )
        self._submit = wiring.tracker
        self._info: RunnerInfo | None = None
        self._engine: Engine | None = None
        self._failure: TrioletError | None = None
        self._failed = trio.Event()

    def actors(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """Every actor, in the order in which they start."""
        return [
            ("dispatcher", self._dispatcher.run),
            ("runner", self._runner.run),
            ("scheduler", self._step_loop.run),
            ("tracker", self._tracker.run),
        ]

    async def guard(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run an actor; its failure is the engine's death, and nobody else's crash."""
        try:
            await run()
        except* Exception as group:
            error = first_exception(group)
            if isinstance(error, (ConfigError, EngineDead)):
                log.debug("actor %s failed: %s", name, error)  # whoever gets it will say it
                self._fail(error)
            else:
                log.error("actor %s failed: %r", name, error, exc_info=error)
                death = EngineDead(f"the {name} failed: {type(error).__name__}: {error}")
                death.__cause__ = error
                self._fail(death)

    def _fail(self, error: TrioletError) -> None:
        if self._failure is None:
            self._failure = error
            self._failed.set()
        if self._engine is not None:
            self._engine.die(error if isinstance(error, EngineDead) else EngineDead(error.message))

    async def wait_open(self) -> Engine:
        """Wait until the runner is ready; then there is an engine.

        Raises:
            ConfigError, EngineDead: Loading failed.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_failed, nursery.cancel_scope)
            scheduler = await self._step_loop.wait_ready()
            nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        assert self._info is not None
        self._engine = Engine(
            config=self._config,
            facts=self._parts.facts,
            tokenizer=self._parts.tokenizer,
            info=self._info,
            scheduler=scheduler,
            input_processor=InputProcessor(
                self._config,
                self._parts.facts,
                self._parts.tokenizer,
                self._parts.offload,
                self._parts.rng,
            ),
            grammars=GrammarGate(self._parts.answer_grammar, self._config.runner.grammar_timeout_s),
            submit=self._submit,
            registry=self._registry,
            admission=self._admission,
            dispatcher=self._dispatcher,
            metrics=self._metrics,
            faults=self._parts.faults,
            id_prefix=self._parts.id_prefix,
            sight=self._sight,
        )
        return self._engine

    async def _cancel_when_failed(self, scope: trio.CancelScope) -> None:
        await self._failed.wait()
        scope.cancel()

    def _make_scheduler(self, ready: RunnerReady) -> Scheduler:
        scheduler = Scheduler(
            self._config.scheduler,
            self._config.cache,
            ready.info,
            eos_token_ids=self._parts.tokenizer.eos_token_ids,
            model_key=f"{self._parts.facts.name} {ready.info.dtype}",
            secret=self._parts.secret,
        )
        if scheduler.max_model_len < ready.info.max_model_len:
            log.warning(
                "the KV cache holds %d tokens: max_model_len is lowered to that from %d",
                scheduler.max_model_len,
                ready.info.max_model_len,
            )
        self._info = attrs.evolve(ready.info, max_model_len=scheduler.max_model_len)
        return scheduler

    def _has_tokens(self, request_id: RequestId) -> bool:
        usage = self._dispatcher.usage(request_id)
        return usage is not None and usage.completion_tokens > 0

    def _on_end(self, entry: RequestEntry) -> None:
        # A normal end was decided by the scheduler, which needs no telling.
        if entry.cause != FINISHED:
            self._marks.mark(entry.request_id)


async def _resolve(config: EngineConfig, progress: Callable[[str], None]) -> ModelFacts:
    """Find and describe the model in a thread, which ends soon after it is cancelled."""

    def report(text: str) -> None:
        # Raises Cancelled in the thread, and a helper process that it waits for is killed.
        trio.from_thread.run_sync(progress, text)

    return await trio.to_thread.run_sync(resolve, config.model, report)
