"""`LLM`: the synchronous face of the engine, for scripts and notebooks.

It is not a second engine: a thread of its own runs trio with `open_engine` in it, and every
call goes through a blocking portal. So it works with or without a running event loop of any
kind in the calling thread.
"""

from __future__ import annotations

import concurrent.futures
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeVar, cast

import attrs
import trio

from triolet.actor.supervisor import first_exception
from triolet.config import EngineConfig
from triolet.engine.blocking_portal import EnginePortal
from triolet.engine.client import EngineStatistics, Prompt
from triolet.engine.engine import Engine
from triolet.errors import InvalidRequest, QueueFull, TrioletError
from triolet.output import TokenLogprobs, Usage
from triolet.request import FinishReason
from triolet.sampling_params import OutputKind, SamplingParams
from triolet.tokenizer.tokenizer import Message, Tokenizer

T = TypeVar("T")

ROOM_CHECK_S = 0.05
"""How often a request that does not fit into the engine's limits tries again."""


@attrs.frozen
class CompletionOutput:
    """One finished output."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None


@attrs.frozen
class RequestOutput:
    """Everything one prompt gave.

    Attributes:
        prompt: As it was given.
        prompt_token_ids: As it was run.
        outputs: The n outputs by index; for beam search best first; with `keep` only those
            that were kept have a finish reason other than CANCELLED.
        usage: Tokens used.
        prompt_logprobs: If they were asked for.
    """

    prompt: Prompt
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None


class LLM:
    """A model to call from synchronous code.

    Use it with `with`, or call `close`; dropped without either it is closed with a
    `ResourceWarning`.

    Args:
        model: As for `open_engine`.
        **settings: As for `open_engine`; the resolved configuration is the same as a
            server's with the same settings.

    Raises:
        TypeError, ConfigError: As `open_engine`.
    """

    def __init__(
        self, model: str = "demo", *, config: EngineConfig | None = None, **settings: object
    ) -> None:
        self._portal = EnginePortal()
        self._portal.open(model, config, settings)
        self._finalizer = weakref.finalize(self, _close_dropped, self._portal)
        self._queued: dict[int, concurrent.futures.Future[RequestOutput]] = {}
        self._next_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything and give everything back. Idempotent.

        Raises:
            RunnerStuck: The worker's thread could not be ended.
            EngineDead: The engine had died and nobody had been told.
        """
        if self._finalizer.detach() is not None:
            self._portal.close()

    @property
    def config(self) -> EngineConfig:
        """As resolved."""
        return self._portal.engine.config

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the model."""
        return self._portal.engine.tokenizer

    def statistics(self) -> EngineStatistics:
        """A moment in the life of the engine."""
        return self._portal.call(_statistics)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Generate for one prompt or many; results are in the order of the prompts.

        Args:
            prompts: Texts, token id lists, or one of either.
            sampling_params: For all, or one for each.
            priority: For all, or one for each; lower is first under the "priority" policy.
            progress: Show a progress bar, where there is a terminal.

        Raises:
            InvalidRequest: A prompt cannot be run; the others are cancelled.
            RequestFailed, EngineDead: As `Engine.generate`.
        """
        requests = _pair(_prompt_list(prompts), sampling_params, priority)
        return self._run(requests, progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Generate the next message of one conversation or many; see `generate`."""
        if not messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        conversations = cast(
            "list[Prompt]", [messages] if isinstance(messages[0], Mapping) else list(messages)
        )
        return self._run(_pair(conversations, sampling_params, priority), progress)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        beam_width: int,
        max_tokens: int,
        length_penalty: float = 1.0,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """The `beam_width` best outputs of each prompt, best first."""
        sampling = SamplingParams(
            n=beam_width,
            beam_width=beam_width,
            max_tokens=max_tokens,
            length_penalty=length_penalty,
            temperature=0.0,
        )
        return self.generate(prompts, sampling, progress=progress)

    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
    ) -> list[int]:
        """Start requests and return their ids at once; `wait` collects them."""
        ids: list[int] = []
        for request in _pair(_prompt_list(prompts), sampling_params, priority):
            self._queued[self._next_id] = self._portal.start(_generate_patiently, request)
            ids.append(self._next_id)
            self._next_id += 1
        return ids

    def wait(self, ids: Sequence[int] | None = None) -> list[RequestOutput]:
        """Wait for enqueued requests (all of them by default), in the order of `ids`.

        Raises:
            KeyError: An id was never enqueued, or was waited for before; nothing is lost.
            TrioletError: One of them failed; the others can still be waited for.
        """
        wanted = list(self._queued) if ids is None else list(ids)
        for i in wanted:
            if i not in self._queued:
                raise KeyError(i)
        try:
            outputs = [self._queued[i].result() for i in wanted]
        except TrioletError:
            # The one that failed has been told of; the others can still be waited for.
            self._queued = {i: f for i, f in self._queued.items() if not _has_failed(f)}
            raise
        except BaseException:  # Ctrl-C: nothing may stay behind
            for i in set(wanted):
                self._queued.pop(i).cancel()
            raise
        for i in wanted:
            self._queued.pop(i, None)
        return outputs

    def _run(self, requests: list[_Request], progress: bool) -> list[RequestOutput]:
        bar = _ProgressBar(len(requests), progress)
        try:
            return self._portal.call(_generate_all, requests, bar.advance)
        finally:
            bar.close()


@attrs.frozen
class _Request:
    prompt: Prompt
    sampling: SamplingParams | None
    priority: int | None


def _prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as many."""
    if isinstance(prompts, str):
        return [prompts]
    if len(prompts) == 0:
        return []
    if isinstance(prompts[0], (int, Mapping)):
        return [cast("Prompt", prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def _pair(
    prompts: list[Prompt],
    sampling: SamplingParams | Sequence[SamplingParams] | None,
    priority: int | Sequence[int],
) -> list[_Request]:
    def spread(value: T | Sequence[T] | None, name: str) -> list[T | None]:
        if not isinstance(value, (list, tuple)):
            return [cast("T | None", value)] * len(prompts)
        if len(value) != len(prompts):
            raise InvalidRequest(
                f"{name} has {len(value)} entries for {len(prompts)} prompts", param=name
            )
        return list(value)

    return [
        _Request(*row)
        for row in zip(
            prompts, spread(sampling, "sampling_params"), spread(priority, "priority"), strict=True
        )
    ]


# In the trio thread.


async def _statistics(engine: Engine) -> EngineStatistics:
    return engine.statistics()


async def _generate_one(engine: Engine, request: _Request) -> RequestOutput:
    sampling = request.sampling or engine.default_sampling()
    sampling = attrs.evolve(sampling, output_kind=OutputKind.FINAL_ONLY)
    outputs: dict[int, CompletionOutput] = {}
    async with engine.generate(request.prompt, sampling, priority=request.priority or 0) as stream:
        async for delta in stream:
            outputs[delta.index] = CompletionOutput(
                delta.index,
                delta.text,
                delta.token_ids,
                delta.logprobs,
                delta.finish_reason,
                delta.stop_reason,
            )
        return RequestOutput(
            request.prompt,
            stream.prompt_token_ids,
            tuple(outputs[index] for index in sorted(outputs)),
            stream.usage,
            stream.prompt_logprobs,
        )


async def _generate_patiently(engine: Engine, request: _Request) -> RequestOutput:
    """Where a server would refuse, a script waits until there is room."""
    while True:
        try:
            return await _generate_one(engine, request)
        except QueueFull:
            await trio.sleep(ROOM_CHECK_S)


def _has_failed(future: concurrent.futures.Future[RequestOutput]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)


async def _generate_all(
    engine: Engine, requests: list[_Request], advance: Callable[[], None]
) -> list[RequestOutput]:
    """All requests, as many at a time as the engine admits; the first error ends the rest."""
    places = trio.CapacityLimiter(engine.config.scheduler.max_live_requests)
    results: dict[int, RequestOutput] = {}

    async def run(index: int, request: _Request) -> None:
        async with places:
            results[index] = await _generate_patiently(engine, request)
        advance()

    error: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            for index, request in enumerate(requests):
                nursery.start_soon(run, index, request)
    except* Exception as group:
        error = first_exception(group)  # raised below: `except*` would wrap it again
    if error is not None:
        raise error
    return [results[index] for index in range(len(requests))]


def _close_dropped(portal: EnginePortal) -> None:
    if not portal.is_ours:
        return
    warnings.warn(
        "an LLM was dropped without close(); use `with LLM(...) as llm:`",
        ResourceWarning,
        stacklevel=2,
    )
    portal.close()


class _ProgressBar:
    """Finished requests, on a terminal only."""

    def __init__(self, total: int, enabled: bool) -> None:
        from rich.progress import Progress

        self._progress = Progress(transient=True, disable=not enabled)
        self._progress.disable = self._progress.disable or not self._progress.console.is_terminal
        self._progress.start()
        self._task = self._progress.add_task("requests", total=total)

    def advance(self) -> None:
        """One more is done; from any thread."""
        self._progress.advance(self._task)

    def close(self) -> None:
        """Take it off the screen."""
        self._progress.stop()
