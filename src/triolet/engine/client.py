"""All that the server and the command line know of an engine.

`Engine` implements it; the HTTP tests serve a fake one (`triolet.testing`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

import attrs

from triolet.config import EngineConfig
from triolet.errors import InvalidRequest
from triolet.messages.runner_to_scheduler import RunnerInfo as RunnerInfo
from triolet.model_source.facts import ModelFacts
from triolet.output import OutputDelta, Sink, TokenLogprobs, Usage
from triolet.request import RequestId, Timeouts
from triolet.sampling_params import SamplingParams
from triolet.tokenizer.tokenizer import Message, Tokenizer

Prompt = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or chat messages (rendered with the model's template)."""


@attrs.frozen
class PromptOptions:
    """How a prompt is turned into token ids; all but the first are for chat messages.

    Attributes:
        add_special_tokens: Let the tokenizer add its own to a text.
        tools: See `Tokenizer.render`.
        documents: See `Tokenizer.render`.
        add_generation_prompt: See `Tokenizer.render`.
        continue_final_message: See `Tokenizer.render`.
        template_kwargs: See `Tokenizer.render`.
        truncate_prompt_tokens: Tokens that are left of a longer prompt, for every kind of
            prompt; -1 is all that the context holds, None cuts nothing.
        truncation_side: Where the rest is cut off.
    """

    add_special_tokens: bool = True
    tools: Sequence[Mapping[str, object]] | None = None
    documents: Sequence[Mapping[str, object]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, object] | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] = "left"

    def truncated(self, token_ids: tuple[int, ...], max_model_len: int) -> tuple[int, ...]:
        """What is left of a prompt.

        Raises:
            InvalidRequest: It would be nothing, or more than the context.
        """
        wanted = self.truncate_prompt_tokens
        if wanted is None:
            return token_ids
        longest = max_model_len - 1  # one token of output at least
        if wanted == -1:
            wanted = longest
        if not 1 <= wanted <= longest:
            raise InvalidRequest(
                f"truncate_prompt_tokens must be -1 or in 1..{longest} with this model, got "
                f"{wanted}",
                param="truncate_prompt_tokens",
            )
        return token_ids[-wanted:] if self.truncation_side == "left" else token_ids[:wanted]


class Health(enum.StrEnum):
    """State of an engine."""

    STARTING = "starting"
    """Loading or warming up, at first or after a restart of the runner."""
    SERVING = "serving"
    DRAINING = "draining"
    """Finishing what it has; nothing new is admitted."""
    STUCK = "stuck"
    """Work exists and no step has ended for too long."""
    DEAD = "dead"


@attrs.frozen
class EngineStatistics:
    """A moment in the life of an engine, cheap to take.

    Attributes:
        health: Its state.
        requests_running: Requests with a sequence in the running set.
        requests_waiting: Requests admitted that wait for a place.
        requests_live: Requests between reserve and end, tokenizing ones included.
        blocks_total: KV blocks there are.
        blocks_used: KV blocks held by sequences.
        blocks_cached: KV blocks free to be taken that still hold a cached prefix.
        steps: Steps finished so far.
        last_step_age_s: Seconds since a step ended, None before the first.
        runner_restarts: Times the runner was replaced.
        tree: The actor tree with states, channel depths and requests, for `/debug/tree`.
    """

    health: Health
    requests_running: int
    requests_waiting: int
    requests_live: int
    blocks_total: int
    blocks_used: int
    blocks_cached: int
    steps: int
    last_step_age_s: float | None
    runner_restarts: int
    tree: Mapping[str, object]


class OutputStream(Protocol):
    """Outputs of one request, as an async iterator. Leaving its scope ends the request."""

    @property
    def request_id(self) -> RequestId:
        """The engine's id of the request."""
        ...

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The prompt as it was submitted."""
        ...

    @property
    def usage(self) -> Usage:
        """Tokens used so far; final after the last output."""
        ...

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...] | None:
        """Of the whole prompt, if they were asked for and are there."""
        ...

    def __aiter__(self) -> OutputStream:
        """The stream itself."""
        ...

    async def __anext__(self) -> OutputDelta:
        """The next piece of any output. A checkpoint; cancelled, nothing is lost.

        Raises:
            StopAsyncIteration: Every output has ended.
            RequestFailed, EngineDead: The request failed.
        """
        ...


class EngineClient(Protocol):
    """What a front end needs of an engine."""

    @property
    def config(self) -> EngineConfig:
        """As resolved."""
        ...

    @property
    def facts(self) -> ModelFacts:
        """Of the model served."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the model served. Its methods may take long: see `tokenize`."""
        ...

    @property
    def max_model_len(self) -> int:
        """Longest context it runs."""
        ...

    @property
    def health(self) -> Health:
        """Its state now."""
        ...

    def statistics(self) -> EngineStatistics:
        """A moment in its life."""
        ...

    def metrics(self) -> bytes:
        """Prometheus text exposition of this engine's registry."""
        ...

    async def tokenize(
        self, prompt: Prompt, options: PromptOptions | None = None
    ) -> tuple[int, ...]:
        """Token ids of a prompt, computed off the run loop. A checkpoint.

        Raises:
            InvalidRequest: The prompt is too long for the limits, or the template refuses it.
        """
        ...

    def generate(
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
    ) -> AbstractAsyncContextManager[OutputStream]:
        """Open the scope of one request.

        Entering it tokenizes, validates and submits; it raises before any token exists if
        the request cannot be admitted. Leaving it, in any way, ends the request at once:
        its KV blocks are free before the next step is scheduled.

        Args:
            prompt: Text, token ids or messages.
            sampling: How to sample; None takes the model's defaults.
            deadline: Seconds for the whole request: short for `timeouts=Timeouts(total=...)`.
            timeouts: Limits of time; None takes the configured ones.
            priority: Lower first, under the "priority" policy.
            cache_salt: Share prefix blocks only with the same salt.
            tenant: Whose limits it counts against.
            label: The client's own id, for logs.
            prefix: Output tokens already emitted elsewhere, to go on after.
            sink: Receives the outputs instead of the stream's buffer, synchronously.
            options: How the prompt is tokenized or rendered.

        Raises:
            Rejected: It was not admitted; see the subclasses.
            EngineDead: The engine is gone.
        """
        ...

    async def cancel(self, request_id: RequestId) -> bool:
        """End a request by its id, as if its consumer had left; False if there is none."""
        ...
