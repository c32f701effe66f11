"""An `EngineClient` without an engine: outputs from a script, for tests of front ends.

    async with FakeEngine(Script(pieces=("Hello", " world"))) as engine:
        app = create_app(engine)

It keeps the promises that a front end relies on: entering `generate` raises before anything
was sent, outputs go to the sink synchronously, leaving the block ends the request at once.
`requests` remembers each one and how it ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs
import trio

from triolet.config import EngineConfig
from triolet.engine.client import EngineStatistics, Health, Prompt, PromptOptions
from triolet.errors import DeadlineExceeded, InvalidRequest, PromptTooLong
from triolet.model_source.facts import ModelFacts
from triolet.output import OutputDelta, Sink, TokenLogprobs, Usage
from triolet.request import FinishReason, RequestId, Timeouts
from triolet.sampling_params import SamplingParams
from triolet.tokenizer.byte_tokenizer import ByteTokenizer
from triolet.tokenizer.tokenizer import Message, Tokenizer


@attrs.frozen(kw_only=True)
class Script:
    """What every request of a fake engine does.

    Attributes:
        pieces: Texts of the deltas of each output; a token is one byte of UTF-8.
        finish_reason: How an output ends whose pieces are used up.
        stop_reason: What goes with it.
        admission_error: Raised by `generate` instead of admitting the request.
        error: Fails the request after `error_after` deltas of its first output.
        error_after: See `error`.
        tokenize_s: Seconds before a request is admitted.
        first_token_s: Seconds from there to the first delta.
        step_s: Seconds between deltas.
        cached_tokens: Prompt tokens reported as found in the cache.
    """

    pieces: tuple[str, ...] = ("Hello", ", ", "world", "!")
    finish_reason: FinishReason = FinishReason.STOP
    stop_reason: str | int | None = None
    admission_error: Exception | None = None
    error: Exception | None = None
    error_after: int = 0
    tokenize_s: float = 0.0
    first_token_s: float = 0.0
    step_s: float = 0.0
    cached_tokens: int = 0


@attrs.define
class FakeRequest:
    """One call of `generate`, remembered.

    Attributes:
        request_id: The engine's id.
        prompt: As it was given.
        sampling: As it was given.
        options: The other arguments, by name.
        state: "tokenizing", "running", "finished", "failed", "ended" (left early) or
            "refused".
        deltas: Deltas delivered.
        ended_at: When its scope was left, on trio's clock.
    """

    request_id: RequestId
    prompt: Prompt
    sampling: SamplingParams
    options: Mapping[str, object]
    state: str = "tokenizing"
    deltas: int = 0
    ended_at: float | None = None


class Gate:
    """Holds back every delta until it is released, one by one."""

    def __init__(self) -> None:
        self._released = trio.Semaphore(0)

    def release(self, count: int = 1) -> None:
        """Let `count` more deltas through."""
        for _ in range(count):
            self._released.release()

    async def wait(self) -> None:
        """Wait for the next release. A checkpoint."""
        await self._released.acquire()


class FakeStream:
    """The `OutputStream` of a fake request; its own sink when none was given."""

    def __init__(self, request_id: RequestId, prompt_token_ids: tuple[int, ...]) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.usage = Usage(len(prompt_token_ids), 0)
        self.prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        self._deltas: list[OutputDelta] = []
        self._error: Exception | None = None
        self._ended = False
        self._changed = trio.Event()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OutputDelta:
        """The next delta. A checkpoint."""
        await trio.lowlevel.checkpoint()
        while not self._deltas:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            await self._changed.wait()
        return self._deltas.pop(0)

    def start(self, cached_tokens: int) -> None:
        """See `Sink`."""

    def put(self, delta: OutputDelta) -> None:
        """See `Sink`."""
        self._deltas.append(delta)
        self._wake()

    def score_prompt(self, logprobs: tuple[TokenLogprobs | None, ...]) -> None:
        """See `Sink`."""
        self.prompt_logprobs = logprobs

    def finish(self, usage: Usage) -> None:
        """See `Sink`."""
        self.usage = usage
        self._ended = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """See `Sink`."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class FakeEngine:
    """A scripted `EngineClient`.

    Args:
        script: What each request does; may be replaced between requests.
        gate: Holds deltas back.
        config: As an engine would have it.
        name: Of the model.
        max_model_len: Longest prompt plus one.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        gate: Gate | None = None,
        config: EngineConfig | None = None,
        name: str = "fake-model",
        max_model_len: int = 4096,
    ) -> None:
        self.script = script or Script()
        self.gate = gate
        self.config = config or EngineConfig()
        self.tokenizer: Tokenizer = ByteTokenizer()
        self.max_model_len = max_model_len
        self.health = Health.SERVING
        self.requests: list[FakeRequest] = []
        self.facts = ModelFacts(
            name=name,
            directory=Path(name),
            architecture="FakeForCausalLM",
            config={},
            vocab_size=self.tokenizer.vocab_size,
            context_len=max_model_len,
            eos_token_ids=self.tokenizer.eos_token_ids,
            generation={},
        )
        self._nursery: trio.Nursery | None = None
        self._manager: AbstractAsyncContextManager[trio.Nursery, bool | None] | None = None

    async def __aenter__(self) -> Self:
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        assert self._nursery is not None
        assert self._manager is not None
        self._nursery.cancel_scope.cancel(reason="fake engine closed")
        return await self._manager.__aexit__(exc_type, exc, traceback)

    @property
    def live(self) -> list[FakeRequest]:
        """Requests whose scope has not been left."""
        return [request for request in self.requests if request.ended_at is None]

    def statistics(self) -> EngineStatistics:
        """Counts of the requests; nothing else is real."""
        return EngineStatistics(
            health=self.health,
            requests_running=len(self.live),
            requests_waiting=0,
            requests_live=len(self.live),
            blocks_total=0,
            blocks_used=0,
            blocks_cached=0,
            steps=sum(request.deltas for request in self.requests),
            last_step_age_s=None,
            runner_restarts=0,
            tree={"fake": True},
        )

    def metrics(self) -> bytes:
        """One gauge, in Prometheus' text format."""
        return b"triolet:num_requests_running %d\n" % len(self.live)

    async def tokenize(
        self, prompt: Prompt, options: PromptOptions | None = None
    ) -> tuple[int, ...]:
        """Bytes of the text or of the rendered chat. A checkpoint."""
        options = options or PromptOptions()
        await trio.sleep(self.script.tokenize_s)
        if isinstance(prompt, str):
            encode = self.tokenizer.encode
            ids = tuple(encode(prompt, add_special_tokens=options.add_special_tokens))
            return options.truncated(ids, self.max_model_len)
        token_ids = tuple(item for item in prompt if isinstance(item, int))
        if token_ids:
            return options.truncated(token_ids, self.max_model_len)
        messages: list[Message] = [item for item in prompt if isinstance(item, Mapping)]
        text = self.tokenizer.render(
            messages,
            tools=options.tools,
            documents=options.documents,
            add_generation_prompt=options.add_generation_prompt,
            continue_final_message=options.continue_final_message,
            template_kwargs=options.template_kwargs,
        )
        ids = tuple(self.tokenizer.encode(text, add_special_tokens=False))
        return options.truncated(ids, self.max_model_len)

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
    ) -> AsyncGenerator[FakeStream]:
        """See `EngineClient.generate`."""
        assert self._nursery is not None, "use the fake engine as a context manager"
        request = FakeRequest(
            RequestId(f"fake-{len(self.requests)}"),
            prompt,
            sampling or SamplingParams(),
            {
                "deadline": deadline,
                "timeouts": timeouts,
                "priority": priority,
                "cache_salt": cache_salt,
                "tenant": tenant,
                "label": label,
                "prefix": tuple(prefix),
                "options": options,
            },
        )
        self.requests.append(request)
        try:
            token_ids = await self._admit(request, prompt, options)
            stream = FakeStream(request.request_id, token_ids)
            run = _Run(self, request, stream, sink or stream, deadline)
            with run.scope_left():
                self._nursery.start_soon(run.play)
                yield stream
        finally:
            request.ended_at = trio.current_time()
            if request.state in ("tokenizing", "running"):
                request.state = "ended"

    async def cancel(self, request_id: RequestId) -> bool:
        """Nothing is known by id here."""
        await trio.lowlevel.checkpoint()
        return False

    async def _admit(
        self, request: FakeRequest, prompt: Prompt, options: PromptOptions | None
    ) -> tuple[int, ...]:
        token_ids = await self.tokenize(prompt, options)
        error = self.script.admission_error
        if error is None and len(token_ids) >= self.max_model_len:
            error = PromptTooLong(
                f"this model's maximum context length is {self.max_model_len} tokens, but the "
                f"prompt has {len(token_ids)}",
                param="prompt",
            )
        if error is None and any(i >= self.facts.vocab_size for i in token_ids):
            error = InvalidRequest("prompt holds a token id outside the vocabulary", param="prompt")
        error = error or self._limit_passed(request.sampling)
        if error is not None:
            request.state = "refused"
            raise error
        request.state = "running"
        return token_ids

    def _limit_passed(self, sampling: SamplingParams) -> InvalidRequest | None:
        highest = self.config.limits.max_logprobs
        for name in ("logprobs", "prompt_logprobs"):
            if (getattr(sampling, name) or 0) > highest:
                return InvalidRequest(f"{name} must be at most {highest}", param=name)
        return None


class _Run:
    """Plays the script for one request."""

    def __init__(
        self,
        engine: FakeEngine,
        request: FakeRequest,
        stream: FakeStream,
        sink: Sink,
        deadline: float | None,
    ) -> None:
        self._engine = engine
        self._request = request
        self._stream = stream
        self._sink = sink
        self._deadline = deadline
        self._scope = trio.CancelScope()

    @contextlib.contextmanager
    def scope_left(self) -> Generator[None]:
        """Stop playing when the block is left."""
        try:
            yield
        finally:
            self._scope.cancel(reason="request scope left")

    async def play(self) -> None:
        """Deliver every delta of every output, then the end."""
        script = self._engine.script
        with self._scope:
            try:
                with trio.fail_after(self._deadline or float("inf")):
                    await self._play(script)
            except trio.TooSlowError:
                self._request.state = "failed"
                self._sink.fail(DeadlineExceeded("the request's deadline passed"))
            except Exception as error:
                # As the dispatcher does: what a sink raises fails its request only.
                self._request.state = "failed"
                self._sink.fail(error)

    async def _play(self, script: Script) -> None:
        sampling = self._request.sampling
        await trio.sleep(script.first_token_s)
        self._sink.start(script.cached_tokens)
        if sampling.prompt_logprobs is not None:
            ids = self._stream.prompt_token_ids
            top = sampling.prompt_logprobs
            scores = (None, *(logprobs_of(token_id, top) for token_id in ids[1:]))
            self._stream.score_prompt(scores)
            if self._sink is not self._stream:
                self._sink.score_prompt(scores)
        outputs = [list(self._deltas(script, index)) for index in range(sampling.n)]
        for step in range(max(map(len, outputs))):
            for output in outputs:
                if step >= len(output):
                    continue
                if script.error is not None and step >= script.error_after:
                    raise script.error
                if self._engine.gate is not None:
                    await self._engine.gate.wait()
                elif self._request.deltas:
                    await trio.sleep(script.step_s)
                self._request.deltas += 1
                self._sink.put(output[step])
        self._request.state = "finished"
        tokens = sum(len(delta.token_ids) for output in outputs for delta in output)
        prompt_tokens = len(self._stream.prompt_token_ids)
        self._sink.finish(Usage(prompt_tokens, tokens, script.cached_tokens))

    def _deltas(self, script: Script, index: int) -> Iterator[OutputDelta]:
        sampling = self._request.sampling
        room = sampling.max_tokens or self._engine.max_model_len
        pieces = [piece for piece in script.pieces if piece]
        for i, piece in enumerate(pieces):
            text = piece.encode()[:room].decode("utf-8", "ignore")
            room -= len(text.encode())
            last = room <= 0 or i == len(pieces) - 1
            reason = None
            if last:
                reason = script.finish_reason if i == len(pieces) - 1 else FinishReason.LENGTH
            yield _delta(index, text, sampling.logprobs, reason, script.stop_reason)
            if last:
                return


def logprobs_of(token_id: int, num_top: int) -> TokenLogprobs:
    """Made-up log-probabilities that depend on the token only."""
    top = tuple(((token_id + i) % 256, -0.5 - 0.25 * i) for i in range(num_top))
    return TokenLogprobs(token_id, -0.5, 1, top)


def _delta(
    index: int,
    text: str,
    num_logprobs: int | None,
    finish_reason: FinishReason | None,
    stop_reason: str | int | None,
) -> OutputDelta:
    token_ids = tuple(text.encode())
    stopped = finish_reason is FinishReason.STOP
    wanted = num_logprobs is not None
    return OutputDelta(
        index=index,
        text=text,
        token_ids=token_ids,
        logprobs=tuple(logprobs_of(i, num_logprobs) for i in token_ids)
        if num_logprobs is not None
        else None,
        finish_reason=finish_reason,
        stop_reason=stop_reason if stopped else None,
        token_texts=_token_texts(text) if wanted else None,
    )


def _token_texts(text: str) -> tuple[str, ...]:
    """Per byte: the last byte of a character completes it."""
    texts: list[str] = []
    for character in text:
        texts.extend([""] * (len(character.encode()) - 1))
        texts.append(character)
    return tuple(texts)
