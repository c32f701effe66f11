"""Streaming input: a prompt that arrives in pieces, with an answer to each.

A session is a row of requests over one growing context. Between two of them it holds no place
in the engine and no KV block of its own: the prefix cache keeps what was computed, and what it
had to give away is computed again. So a session that waits for its next piece costs nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Self

from triolet.engine.client import Prompt
from triolet.engine.stream import RequestStream
from triolet.errors import InvalidRequest
from triolet.output import OutputDelta
from triolet.sampling_params import OutputKind, SamplingParams

Open = Callable[[tuple[int, ...]], AbstractAsyncContextManager[RequestStream]]
Tokenize = Callable[[Prompt, bool], Awaitable[tuple[int, ...]]]


def check_session(sampling: SamplingParams) -> None:
    """Refuse parameters that make no sense for a context that goes on after its output.

    Raises:
        InvalidRequest: `param` names the first.
    """
    excluded = {
        "n": sampling.n != 1,
        "beam_width": sampling.beam_width is not None,
        # A stop string is cut off the text, but its tokens would stay in the context.
        "stop": bool(sampling.stop),
        "output_kind": sampling.output_kind is not OutputKind.DELTA,
        "prompt_logprobs": sampling.prompt_logprobs is not None,
    }
    for param, is_given in excluded.items():
        if is_given:
            raise InvalidRequest(f"{param} cannot be used in a session", param=param)


class SessionStream:
    """Outputs of a session, as an async iterator; made by `Engine.session`.

    Each piece of input is answered by deltas of which the last has a `finish_reason`; then the
    next piece is taken from the caller. It ends with the input.

    Attributes:
        context: Every token so far, of input and output.
    """

    def __init__(
        self, pieces: AsyncIterator[Prompt], tokenize: Tokenize, open_request: Open
    ) -> None:
        self._pieces = pieces
        self._tokenize = tokenize
        self._open_request = open_request
        self._request = AsyncExitStack()
        self._stream: RequestStream | None = None
        self.context: tuple[int, ...] = ()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OutputDelta:
        """The next piece of output, waiting for input if need be. A checkpoint.

        Raises:
            StopAsyncIteration: The input has ended, and everything was answered.
            Rejected, RequestFailed, EngineDead: As `Engine.generate`.
        """
        while True:
            if self._stream is None:
                piece = await self._pieces.__anext__()
                self.context += await self._tokenize(piece, not self.context)
                self._stream = await self._request.enter_async_context(
                    self._open_request(self.context)
                )
            try:
                delta = await self._stream.__anext__()
            except StopAsyncIteration:
                await self.aclose()
                continue
            self.context += delta.token_ids
            return delta

    async def aclose(self) -> None:
        """End the request that is open, if one is. Nothing in it waits."""
        self._stream = None
        await self._request.aclose()


@asynccontextmanager
async def open_session(
    pieces: AsyncIterable[Prompt], tokenize: Tokenize, open_request: Open
) -> AsyncGenerator[SessionStream]:
    """The scope of a session: leaving it ends whatever request is open."""
    session = SessionStream(aiter(pieces), tokenize, open_request)
    try:
        yield session
    finally:
        await session.aclose()
