"""One HTTP request to the engine's requests and back: scopes in, an answer out.

Every prompt of the HTTP request is one scope of the engine. All are entered, so admitted,
before the first byte of an answer; leaving the block ends whatever is still running.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import attrs
import trio

from triolet.engine.client import EngineClient, OutputStream, Prompt, PromptOptions
from triolet.engine.offload import Offload
from triolet.errors import InternalError, TrioletError
from triolet.output import OutputDelta, TokenLogprobs, Usage
from triolet.protocol.answer import AcceptedPrompt, Answer
from triolet.sampling_params import SamplingParams
from triolet.server.api.error_response import Response
from triolet.server.api.exchange import Exchange
from triolet.server.api.sse import EventWriter


@attrs.frozen(kw_only=True)
class Job:
    """What an HTTP request asks of the engine.

    Attributes:
        prompts: One engine request each.
        sampling: For all of them.
        deadline_s: Seconds for each; None takes the engine's own.
        priority: Lower first.
        cache_salt: See `EngineClient.generate`.
        tenant: See `EngineClient.generate`.
        label: The client's own id.
        echo: The answer repeats the prompt's text.
        echo_pieces: And says which token stands for which part of it.
        options: How the prompts are tokenized or rendered.
    """

    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    deadline_s: float | None = None
    priority: int = 0
    cache_salt: str | None = None
    tenant: str | None = None
    label: str | None = None
    echo: bool = False
    echo_pieces: bool = False
    options: PromptOptions = attrs.field(factory=PromptOptions)


class Collector:
    """Feeds an answer from the sinks of all prompts, synchronously.

    Args:
        answer: Turns outputs into bytes.
        write: Takes the bytes; whole answers give none before the end.
        num_prompts: Prompts that must end before the answer is complete.
    """

    def __init__(self, answer: Answer, write: Callable[[bytes], None], num_prompts: int) -> None:
        self.answer = answer
        self.write = write
        self.usages: list[Usage | None] = [None] * num_prompts
        self.error: Exception | None = None
        self.ended = trio.Event()
        self.on_end: Callable[[], None] | None = None

    def finish(self, prompt_index: int, usage: Usage) -> None:
        """A prompt has ended; the last one ends the answer."""
        self.usages[prompt_index] = usage
        if None not in self.usages:
            self._end()

    def fail(self, error: Exception) -> None:
        """A prompt has failed, so the answer has."""
        if self.error is None:
            self.error = error
            self._end()

    def check(self) -> None:
        """Raise what a prompt failed with."""
        if isinstance(self.error, TrioletError):
            raise self.error
        if self.error is not None:
            raise InternalError("the request failed with an unexpected error") from self.error

    def body_end(self) -> bytes:
        """Last bytes of the answer, once every prompt has ended."""
        return self.answer.finish([usage for usage in self.usages if usage is not None])

    def _end(self) -> None:
        self.ended.set()
        if self.on_end is not None:
            self.on_end()


class PromptSink:
    """The engine's `Sink` for one prompt. What comes before `open` waits for it."""

    def __init__(self, collector: Collector, prompt_index: int) -> None:
        self._collector = collector
        self._index = prompt_index
        self._waiting: list[Callable[[], None]] | None = []

    def open(self, prompt: AcceptedPrompt) -> bytes:
        """The prompt was admitted: its opening bytes, which the caller writes first."""
        return self._collector.answer.start(self._index, prompt)

    def release(self) -> None:
        """Deliver what came before the prompt was opened."""
        waiting, self._waiting = self._waiting or [], None
        for deliver in waiting:
            deliver()

    def start(self, cached_tokens: int) -> None:
        """See `Sink`; the final usage has the number."""

    def put(self, delta: OutputDelta) -> None:
        """See `Sink`."""
        if self._waiting is not None:
            self._waiting.append(partial(self.put, delta))
            return
        self._collector.write(self._collector.answer.put(self._index, delta))

    def score_prompt(self, logprobs: tuple[TokenLogprobs | None, ...]) -> None:
        """See `Sink`."""
        if self._waiting is not None:
            self._waiting.append(partial(self.score_prompt, logprobs))
            return
        self._collector.write(self._collector.answer.score_prompt(self._index, logprobs))

    def finish(self, usage: Usage) -> None:
        """See `Sink`."""
        if self._waiting is not None:
            self._waiting.append(partial(self.finish, usage))
            return
        self._collector.finish(self._index, usage)

    def fail(self, error: Exception) -> None:
        """See `Sink`."""
        self._collector.fail(error)


@asynccontextmanager
async def submitted(
    engine: EngineClient,
    offload: Offload,
    job: Job,
    collector: Collector,
    allow: Callable[[int], None],
) -> AsyncGenerator[None]:
    """Hold the engine's scopes of every prompt. Entering waits for admission.

    Args:
        engine: The engine.
        offload: Where the text of an echoed prompt is made.
        job: What to run.
        collector: Receives the outputs.
        allow: Told the size of each prompt's opening bytes before they are written.

    Raises:
        Rejected: A prompt was not admitted; the ones before it are ended.
    """
    async with AsyncExitStack() as stack:
        for index, prompt in enumerate(job.prompts):
            sink = PromptSink(collector, index)
            stream = await stack.enter_async_context(
                engine.generate(
                    prompt,
                    job.sampling,
                    deadline=job.deadline_s,
                    priority=job.priority,
                    cache_salt=job.cache_salt,
                    tenant=job.tenant,
                    label=job.label,
                    sink=sink,
                    options=job.options,
                )
            )
            opening = sink.open(await _accepted(engine, offload, job, prompt, stream))
            allow(len(opening))
            collector.write(opening)
            sink.release()
            collector.check()  # a prompt that has failed spares the others their admission
        yield


async def answer_whole(
    engine: EngineClient, offload: Offload, job: Job, answer: Answer
) -> Response:
    """Run a job to its end and answer in one piece. A checkpoint.

    Raises:
        TrioletError: It was not admitted, or failed.
    """
    collector = Collector(answer, lambda _: None, len(job.prompts))
    async with submitted(engine, offload, job, collector, lambda _: None):
        await collector.ended.wait()
        collector.check()
    if job.sampling.logprobs is None and job.sampling.prompt_logprobs is None:
        return Response(200, collector.body_end())
    # Up to 21 names for every token of prompt and answer: too long for the loop.
    return Response(200, await offload.run(collector.body_end))


async def answer_events(
    engine: EngineClient,
    offload: Offload,
    job: Job,
    answer: Answer,
    exchange: Exchange,
    writer: EventWriter,
) -> None:
    """Run a job and send its events. A checkpoint.

    Returns when every event was sent; the caller ends the response.

    Raises:
        TrioletError: It was not admitted and nothing was sent, or it failed in mid-stream.
    """
    collector = Collector(answer, writer.write, len(job.prompts))
    collector.on_end = writer.close
    async with submitted(engine, offload, job, collector, writer.allow):
        collector.check()
        await writer.open(exchange)
        await writer.run()
        collector.check()
    if collector.ended.is_set():
        last = collector.body_end()
        writer.allow(len(last))
        writer.write(last)


async def _accepted(
    engine: EngineClient, offload: Offload, job: Job, prompt: Prompt, stream: OutputStream
) -> AcceptedPrompt:
    token_ids = stream.prompt_token_ids
    if not job.echo:
        return AcceptedPrompt(token_ids)
    read = partial(_read_prompt, engine, token_ids, job.sampling.skip_special_tokens)
    pieces = await offload.run(read)
    is_whole = job.options.truncate_prompt_tokens is None
    text = prompt if isinstance(prompt, str) and is_whole else "".join(pieces)
    return AcceptedPrompt(token_ids, text, pieces if job.echo_pieces else ())


def _read_prompt(
    engine: EngineClient, token_ids: tuple[int, ...], skip_special_tokens: bool
) -> tuple[str, ...]:
    """In a worker thread: the text that each token completes."""
    detokenizer = engine.tokenizer.detokenizer(skip_special_tokens=skip_special_tokens)
    pieces = [detokenizer.push(token_id) for token_id in token_ids]
    pieces[-1] += detokenizer.flush()
    return tuple(pieces)
