"""Answers of /v1/chat/completions: a stream of chunks, or one body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from triolet.output import OutputDelta, TokenLogprobs, Usage
from triolet.protocol import sse
from triolet.protocol.answer import AcceptedPrompt, AnswerHead, UsageSoFar
from triolet.protocol.chat_message import message_fields
from triolet.protocol.finish import wire_finish
from triolet.protocol.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from triolet.protocol.output_reader import OutputPiece, OutputReader, Reading
from triolet.protocol.parsers.call import Content
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
        role: Whose messages the outputs are.
        reading: How outputs are read for reasoning and calls; None leaves their text alone.
    """

    n: int
    names: TokenNames
    logprobs: bool = False
    return_token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    echo: str = ""
    role: str = "assistant"
    reading: Reading | None = None

    def readers(self, seed: str) -> list[OutputReader]:
        """A reader per output; none where the text is left alone."""
        if self.reading is None:
            return []
        return [OutputReader(self.reading, seed, index) for index in range(self.n)]


def _reasoning_tokens(shape: ChatShape, readers: Sequence[OutputReader]) -> int | None:
    if shape.reading is None or not shape.reading.reasons:
        return None
    return sum(reader.reasoning_tokens for reader in readers)


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
        self._readers = shape.readers(head.id)
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
                    "delta": {"role": self._shape.role, "content": self._shape.echo},
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
        if self._is_plain and not self._readers and delta.finish_reason is None:
            return self._text(delta.index, delta.text) if delta.text else b""
        pieces: list[OutputPiece]
        if self._readers:
            reader = self._readers[delta.index]
            pieces = reader.put(delta)
            finish_reason, stop_reason = reader.finish
        else:
            pieces = [Content(delta.text)] if delta.text else []
            finish_reason, stop_reason = wire_finish(delta)
        if finish_reason is None and self._is_plain:
            if not pieces:
                return b""
            if len(pieces) == 1 and isinstance(pieces[0], Content):
                return self._text(delta.index, pieces[0].text)
        fields = message_fields(pieces, stream=True)
        if finish_reason is None and not fields:
            if not delta.token_ids:
                return b""
            fields = {"content": ""}
        shape = self._shape
        choice: dict[str, object] = {
            "index": delta.index,
            "delta": fields,
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
        usage = wire_usage(usages, _reasoning_tokens(self._shape, self._readers))
        return sse.event({**self._head, "choices": [], "usage": usage}) + sse.DONE

    def _text(self, index: int, text: str) -> bytes:
        """A chunk of plain text."""
        return self._plain[index] + sse.dump(text) + self._plain_end

    def _chunk(self, choice: dict[str, object], extra: dict[str, object]) -> bytes:
        value: dict[str, object] = {**self._head, "choices": [choice], **extra}
        if self._shape.continuous_usage:
            reasoning = _reasoning_tokens(self._shape, self._readers)
            value["usage"] = wire_usage([self._usage.usage()], reasoning)
        return sse.event(value)


@dataclass(slots=True)
class _Choice:
    pieces: list[OutputPiece] = field(default_factory=list[OutputPiece])
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
        self._readers = shape.readers(head.id)
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
        if self._readers:
            reader = self._readers[delta.index]
            choice.pieces += reader.put(delta)
            choice.finish_reason, choice.stop_reason = reader.finish
        else:
            choice.pieces.append(Content(delta.text))
            choice.finish_reason, choice.stop_reason = wire_finish(delta)
        choice.token_ids.extend(delta.token_ids)
        if self._shape.logprobs:
            choice.deltas.append(delta)
        return b""

    def finish(self, usages: Sequence[Usage]) -> bytes:
        """The body."""
        body: dict[str, object] = {
            "id": self._head.id,
            "object": "chat.completion",
            "created": self._head.created,
            "model": self._head.model,
            "choices": [self._choice(i, choice) for i, choice in enumerate(self._choices)],
            "usage": wire_usage(usages, _reasoning_tokens(self._shape, self._readers)),
            "service_tier": None,
            "system_fingerprint": None,
        }
        if self._scores is not None:
            body["prompt_logprobs"] = prompt_logprobs(self._scores, self._shape.names)
        if self._shape.return_token_ids:
            body["prompt_token_ids"] = list(self._prompt.token_ids)
        return sse.dump(body)

    def _choice(self, index: int, choice: _Choice) -> dict[str, object]:
        fields = message_fields(choice.pieces, stream=False)
        content = self._shape.echo + str(fields.pop("content", ""))
        out: dict[str, object] = {
            "index": index,
            "message": {
                "role": self._shape.role,
                "content": None if fields and not content else content,
                "refusal": None,
                **fields,
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
