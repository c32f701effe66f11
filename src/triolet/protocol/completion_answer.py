"""Answers of /v1/completions: a stream of chunks, or one body.

Choices are prompt-major: choice `prompt_index * n + i` is output i of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import attrs

from triolet.output import OutputDelta, TokenLogprobs, Usage
from triolet.protocol import sse
from triolet.protocol.answer import AcceptedPrompt, AnswerHead, UsageSoFar
from triolet.protocol.finish import wire_finish
from triolet.protocol.logprobs import (
    CompletionLogprobs,
    TokenNames,
    extend_arrays,
    prompt_logprobs,
)
from triolet.protocol.usage import wire_usage


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """What of an answer was asked for.

    Attributes:
        n: Outputs per prompt.
        num_prompts: Prompts.
        names: Texts of tokens.
        logprobs: Whether choices have logprobs.
        prompt_logprobs: Whether choices have vLLM's `prompt_logprobs`.
        echo: Whether the prompt comes before each output.
        prompt_only: Whether the completion is left out (`echo` with `max_tokens` 0).
        return_token_ids: Whether prompt and output ids are in the answer.
        include_usage: Whether a stream ends with a usage chunk.
        continuous_usage: Whether every chunk has the usage so far.
    """

    n: int
    num_prompts: int
    names: TokenNames
    logprobs: bool = False
    prompt_logprobs: bool = False
    echo: bool = False
    prompt_only: bool = False
    return_token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False

    def shown(self, delta: OutputDelta) -> OutputDelta:
        """The delta as the client sees it: without its tokens if only the prompt is wanted."""
        if not self.prompt_only:
            return delta
        return attrs.evolve(
            delta, text="", token_ids=(), logprobs=() if delta.logprobs else None, token_texts=None
        )

    def counted(self, usages: Sequence[Usage]) -> list[Usage]:
        """Usage as the client sees it."""
        if not self.prompt_only:
            return list(usages)
        return [attrs.evolve(usage, completion_tokens=0) for usage in usages]


class CompletionStream:
    """An `Answer` in chunks, one choice per chunk."""

    def __init__(self, head: AnswerHead, shape: CompletionShape) -> None:
        self._shape = shape
        self._head = {
            "id": head.id,
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
        }
        self._usage = UsageSoFar()
        self._prompts: dict[int, AcceptedPrompt] = {}
        self._logprobs = [
            CompletionLogprobs(shape.names) for _ in range(shape.n * shape.num_prompts)
        ]
        self._waiting: dict[int, list[OutputDelta]] = {}
        prefix = b"data: " + sse.dump(self._head)[:-1]
        self._plain = [
            prefix + b',"choices":[{"index":%d,"text":' % index
            for index in range(shape.n * shape.num_prompts)
        ]
        self._plain_end = b',"logprobs":null,"finish_reason":null}]}\n\n'
        self._is_plain = not (shape.logprobs or shape.return_token_ids or shape.continuous_usage)

    def start(self, prompt_index: int, prompt: AcceptedPrompt) -> bytes:
        """The echo, unless its logprobs are still to come."""
        self._prompts[prompt_index] = prompt
        self._usage.add_prompt(len(prompt.token_ids))
        if not (self._shape.echo or self._shape.return_token_ids):
            return b""
        if self._shape.echo and self._shape.logprobs:
            self._waiting[prompt_index] = []
            return b""
        return self._open(prompt_index, None)

    def score_prompt(self, prompt_index: int, logprobs: Sequence[TokenLogprobs | None]) -> bytes:
        """The echo with its logprobs, and whatever waited behind it."""
        waiting = self._waiting.pop(prompt_index, [])
        opening = self._open(prompt_index, logprobs)
        return opening + b"".join(self.put(prompt_index, delta) for delta in waiting)

    def put(self, prompt_index: int, delta: OutputDelta) -> bytes:
        """A chunk, or nothing while a character or stop string is incomplete."""
        if prompt_index in self._waiting:
            self._waiting[prompt_index].append(delta)
            return b""
        delta = self._shape.shown(delta)
        self._usage.add(delta)
        index = prompt_index * self._shape.n + delta.index
        finish_reason, stop_reason = wire_finish(delta)
        if finish_reason is None:
            if not delta.text and (self._is_plain or not delta.token_ids):
                return b""
            if self._is_plain:
                return self._plain[index] + sse.dump(delta.text) + self._plain_end
        choice: dict[str, object] = {
            "index": index,
            "text": delta.text,
            "logprobs": self._logprobs[index].delta(delta) if self._shape.logprobs else None,
            "finish_reason": finish_reason,
        }
        if finish_reason is not None:
            choice["stop_reason"] = stop_reason
        if self._shape.return_token_ids:
            choice["token_ids"] = list(delta.token_ids)
        return self._chunk(choice)

    def finish(self, usages: Sequence[Usage]) -> bytes:
        """The usage chunk if it was asked for, and the terminator."""
        if not self._shape.include_usage:
            return sse.DONE
        usage = wire_usage(self._shape.counted(usages))
        return sse.event({**self._head, "choices": [], "usage": usage}) + sse.DONE

    def _open(self, prompt_index: int, logprobs: Sequence[TokenLogprobs | None] | None) -> bytes:
        prompt = self._prompts[prompt_index]
        chunks: list[bytes] = []
        for i in range(self._shape.n):
            index = prompt_index * self._shape.n + i
            choice: dict[str, object] = {
                "index": index,
                "text": prompt.text if self._shape.echo else "",
                "logprobs": None
                if logprobs is None
                else self._logprobs[index].prompt(prompt.token_ids, prompt.pieces, logprobs),
                "finish_reason": None,
            }
            if self._shape.return_token_ids:
                choice["prompt_token_ids"] = list(prompt.token_ids)
                choice["token_ids"] = []
            chunks.append(self._chunk(choice))
        return b"".join(chunks)

    def _chunk(self, choice: dict[str, object]) -> bytes:
        value: dict[str, object] = {**self._head, "choices": [choice]}
        if self._shape.continuous_usage:
            value["usage"] = wire_usage([self._usage.usage()])
        return sse.event(value)


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list[str])
    token_ids: list[int] = field(default_factory=list[int])
    deltas: list[OutputDelta] = field(default_factory=list[OutputDelta])
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class CompletionBody:
    """An `Answer` in one piece."""

    def __init__(self, head: AnswerHead, shape: CompletionShape) -> None:
        self._head = head
        self._shape = shape
        self._choices = [_Choice() for _ in range(shape.n * shape.num_prompts)]
        self._prompts: dict[int, AcceptedPrompt] = {}
        self._scores: dict[int, Sequence[TokenLogprobs | None]] = {}

    def start(self, prompt_index: int, prompt: AcceptedPrompt) -> bytes:
        """Remember the prompt."""
        self._prompts[prompt_index] = prompt
        return b""

    def score_prompt(self, prompt_index: int, logprobs: Sequence[TokenLogprobs | None]) -> bytes:
        """Remember the scores."""
        self._scores[prompt_index] = logprobs
        return b""

    def put(self, prompt_index: int, delta: OutputDelta) -> bytes:
        """Collect a delta."""
        delta = self._shape.shown(delta)
        choice = self._choices[prompt_index * self._shape.n + delta.index]
        choice.texts.append(delta.text)
        choice.token_ids.extend(delta.token_ids)
        if self._shape.logprobs:
            choice.deltas.append(delta)
        if delta.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = wire_finish(delta)
        return b""

    def finish(self, usages: Sequence[Usage]) -> bytes:
        """The body."""
        return sse.dump(
            {
                "id": self._head.id,
                "object": "text_completion",
                "created": self._head.created,
                "model": self._head.model,
                "choices": [self._choice(i, choice) for i, choice in enumerate(self._choices)],
                "usage": wire_usage(self._shape.counted(usages)),
                "system_fingerprint": None,
            }
        )

    def _choice(self, index: int, choice: _Choice) -> dict[str, object]:
        shape = self._shape
        prompt_index = index // shape.n
        prompt = self._prompts[prompt_index]
        scores = self._scores.get(prompt_index)
        echoed = prompt.text if shape.echo else ""
        out: dict[str, object] = {
            "index": index,
            "text": echoed + "".join(choice.texts),
            "logprobs": self._logprobs(choice, prompt, scores) if shape.logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if shape.prompt_logprobs:
            out["prompt_logprobs"] = prompt_logprobs(scores or (), shape.names)
        if shape.return_token_ids:
            out["prompt_token_ids"] = list(prompt.token_ids)
            out["token_ids"] = choice.token_ids
        return out

    def _logprobs(
        self,
        choice: _Choice,
        prompt: AcceptedPrompt,
        scores: Sequence[TokenLogprobs | None] | None,
    ) -> dict[str, list[object]]:
        arrays = CompletionLogprobs(self._shape.names)
        out = arrays.prompt(
            prompt.token_ids if self._shape.echo else (), prompt.pieces, scores or ()
        )
        for delta in choice.deltas:
            extend_arrays(out, arrays.delta(delta))
        return out
