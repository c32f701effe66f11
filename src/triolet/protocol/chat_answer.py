"""Answers of /v1/chat/completions: a stream of chunks, or one body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from triolet.output import OutputDelta, TokenLogprobs, Usage
from triolet.protocol import sse
from triolet.protocol.answer import AcceptedPrompt, AnswerHead, UsageSoFar
from triolet.protocol.finish import wire_finish
from triolet.protocol.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from triolet.protocol.usage import wire_usage


@dataclass(frozen=True, slots=True)
class ChatShape:
    """What of an answer was asked for.

    Attributes:
        n: Outputs.
        names: Texts of tokens.
        logprobs: Whether each choice has logprobs.
        return_token_ids: Whether prompt and output ids are in the answer.
        include_usage: Whether a stream ends with a usage chunk.
        continuous_usage: Whether every chunk has the usage so far.
        echo: Text that comes before each output, "" for none.
    """

    n: int
    names: TokenNames
    logprobs: bool = False
    return_token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    echo: str = ""


class ChatStream:
    """An `Answer` in chunks: role first for every choice, then text, then [DONE]."""

    def __init__(self, head: AnswerHead, shape: ChatShape) -> None:
        self._shape = shape
        self._head = {
            "id": head.id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
        }
        self._usage = UsageSoFar()
        prefix = b"data: " + sse.dump(self._head)[:-1]
        # A chunk of plain text, which most are, is these bytes around the text.
        self._plain = [
            prefix + b',"choices":[{"index":%d,"delta":{"content":' % index
            for index in range(shape.n)
        ]
        self._plain_end = b'},"logprobs":null,"finish_reason":null}]}\n\n'
        self._is_plain = not (shape.logprobs or shape.return_token_ids or shape.continuous_usage)

    def start(self, prompt_index: int, prompt: AcceptedPrompt) -> bytes:
        """Role chunks, one per choice."""
        assert prompt_index == 0, "a chat has one prompt"
        self._usage.add_prompt(len(prompt.token_ids))
        extra: dict[str, object] = {}
        if self._shape.return_token_ids:
            extra["prompt_token_ids"] = list(prompt.token_ids)
        return b"".join(
            self._chunk(
                {
                    "index": index,
                    "delta": {"role": "assistant", "content": self._shape.echo},
                    "logprobs": None,
                    "finish_reason": None,
                },
                extra if index == 0 else {},
            )
            for index in range(self._shape.n)
        )

    def score_prompt(self, prompt_index: int, logprobs: Sequence[TokenLogprobs | None]) -> bytes:
        """Nothing: a stream has no place for them, the request was refused before."""
        raise AssertionError("prompt_logprobs are refused in streams")

    def put(self, prompt_index: int, delta: OutputDelta) -> bytes:
        """A chunk, or nothing while a character or stop string is incomplete."""
        self._usage.add(delta)
        finish_reason, stop_reason = wire_finish(delta)
        if finish_reason is None:
            if self._is_plain:
                if not delta.text:
                    return b""
                return self._plain[delta.index] + sse.dump(delta.text) + self._plain_end
            if not delta.text and not delta.token_ids:
                return b""
        shape = self._shape
        choice: dict[str, object] = {
            "index": delta.index,
            "delta": {"content": delta.text} if delta.text or finish_reason is None else {},
            "logprobs": {"content": chat_logprobs(delta, shape.names)} if shape.logprobs else None,
            "finish_reason": finish_reason,
        }
        if finish_reason is not None:
            choice["stop_reason"] = stop_reason
        if shape.return_token_ids:
            choice["token_ids"] = list(delta.token_ids)
        return self._chunk(choice, {})

    def finish(self, usages: Sequence[Usage]) -> bytes:
        """The usage chunk if it was asked for, and the terminator."""
        if not self._shape.include_usage:
            return sse.DONE
        return sse.event({**self._head, "choices": [], "usage": wire_usage(usages)}) + sse.DONE

    def _chunk(self, choice: dict[str, object], extra: dict[str, object]) -> bytes:
        value: dict[str, object] = {**self._head, "choices": [choice], **extra}
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


class ChatBody:
    """An `Answer` in one piece."""

    def __init__(self, head: AnswerHead, shape: ChatShape) -> None:
        self._head = head
        self._shape = shape
        self._choices = [_Choice() for _ in range(shape.n)]
        self._prompt = AcceptedPrompt(())
        self._scores: Sequence[TokenLogprobs | None] | None = None

    def start(self, prompt_index: int, prompt: AcceptedPrompt) -> bytes:
        """Remember the prompt."""
        assert prompt_index == 0, "a chat has one prompt"
        self._prompt = prompt
        return b""

    def score_prompt(self, prompt_index: int, logprobs: Sequence[TokenLogprobs | None]) -> bytes:
        """Remember the scores."""
        self._scores = logprobs
        return b""

    def put(self, prompt_index: int, delta: OutputDelta) -> bytes:
        """Collect a delta."""
        choice = self._choices[delta.index]
        choice.texts.append(delta.text)
        choice.token_ids.extend(delta.token_ids)
        if self._shape.logprobs:
            choice.deltas.append(delta)
        if delta.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = wire_finish(delta)
        return b""

    def finish(self, usages: Sequence[Usage]) -> bytes:
        """The body."""
        body: dict[str, object] = {
            "id": self._head.id,
            "object": "chat.completion",
            "created": self._head.created,
            "model": self._head.model,
            "choices": [self._choice(i, choice) for i, choice in enumerate(self._choices)],
            "usage": wire_usage(usages),
            "service_tier": None,
            "system_fingerprint": None,
        }
        if self._scores is not None:
            body["prompt_logprobs"] = prompt_logprobs(self._scores, self._shape.names)
        if self._shape.return_token_ids:
            body["prompt_token_ids"] = list(self._prompt.token_ids)
        return sse.dump(body)

    def _choice(self, index: int, choice: _Choice) -> dict[str, object]:
        out: dict[str, object] = {
            "index": index,
            "message": {
                "role": "assistant",
                "content": self._shape.echo + "".join(choice.texts),
                "refusal": None,
            },
            "logprobs": self._logprobs(choice) if self._shape.logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._shape.return_token_ids:
            out["token_ids"] = choice.token_ids
        return out

    def _logprobs(self, choice: _Choice) -> dict[str, object]:
        names = self._shape.names
        return {"content": [entry for d in choice.deltas for entry in chat_logprobs(d, names)]}
