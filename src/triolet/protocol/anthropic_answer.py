"""Answers of /v1/messages: a stream of events, or one message; and its error object."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence

from triolet.errors import TrioletError
from triolet.output import OutputDelta, TokenLogprobs, Usage
from triolet.protocol import sse
from triolet.protocol.answer import AcceptedPrompt, AnswerHead
from triolet.protocol.error_object import cut_message
from triolet.protocol.output_reader import MadeCall, OutputPiece, OutputReader, Reading
from triolet.protocol.parsers.call import Content, Reasoning

UNSIGNED = "unsigned"
"""Signature of thinking blocks: clients want one and send it back, nobody here checks it."""

_ERROR_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error_type(status: int) -> str:
    """`error.type` of an HTTP status."""
    return _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def anthropic_error(error: TrioletError, request_id: str | None = None) -> dict[str, object]:
    """The body of a failure. `param` and `code` are triolet's additions."""
    value: dict[str, object] = {
        "type": "error",
        "error": {
            "type": anthropic_error_type(error.http_status),
            "message": cut_message(error.message),
            "param": None if error.param is None else cut_message(error.param),
            "code": error.code,
        },
    }
    if request_id is not None:
        value["request_id"] = request_id
    return value


def anthropic_error_event(error: TrioletError) -> bytes:
    """How a stream that has begun ends when its request fails."""
    return sse.named_event("error", anthropic_error(error))


def anthropic_stop(reader: OutputReader) -> tuple[str | None, str | None]:
    """(`stop_reason`, `stop_sequence`) of an output that has ended, else (None, None)."""
    finish_reason, stopped_by = reader.finish
    if finish_reason is None:
        return None, None
    if finish_reason in ("stop", "tool_calls") and reader.num_calls:
        return "tool_use", None
    if finish_reason == "stop":
        return ("stop_sequence", stopped_by) if isinstance(stopped_by, str) else ("end_turn", None)
    return ("max_tokens", None) if finish_reason == "length" else ("end_turn", None)


def anthropic_usage(usage: Usage) -> dict[str, object]:
    """`usage`: tokens that were found in the cache are not input tokens here."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
    }


def _message(head: AnswerHead, content: Sequence[object], usage: Usage) -> dict[str, object]:
    return {
        "id": head.id,
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": list(content),
        "stop_reason": None,
        "stop_sequence": None,
        "usage": anthropic_usage(usage),
    }


def _tool_use_id(made: MadeCall) -> str:
    """Clients of this protocol expect their own prefix."""
    return made.id.replace("call_", "toolu_", 1)


class MessageStream:
    """An `Answer` as events: message_start, blocks one after the other, message_stop.

    The stop reason is in message_delta, which comes with the final usage: so the last output
    is held until `finish`.
    """

    def __init__(self, head: AnswerHead, reading: Reading) -> None:
        self._head = head
        self._reader = OutputReader(reading, head.id)
        self._index = 0
        self._open: type[Reasoning | Content] | None = None

    def start(self, prompt_index: int, prompt: AcceptedPrompt) -> bytes:
        """message_start, with the tokens of the prompt."""
        assert prompt_index == 0, "a chat has one prompt"
        message = _message(self._head, [], Usage(len(prompt.token_ids), 0))
        return self._event("message_start", message=message)

    def score_prompt(self, prompt_index: int, logprobs: Sequence[TokenLogprobs | None]) -> bytes:
        """Nothing: they cannot be asked for."""
        raise AssertionError("the protocol has no log-probabilities")

    def put(self, prompt_index: int, delta: OutputDelta) -> bytes:
        """Events of a delta; calls are blocks of their own."""
        return b"".join(map(self._piece, self._reader.put(delta)))

    def finish(self, usages: Sequence[Usage]) -> bytes:
        """The end of the last block, the stop reason and the end."""
        (usage,) = usages
        stop_reason, stop_sequence = anthropic_stop(self._reader)
        opening = b""
        if self._index == 0 and self._open is None:
            opening = self._start_block(Content)  # an empty answer is an empty text
        return (
            opening
            + self._stop_block()
            + self._event(
                "message_delta",
                delta={"stop_reason": stop_reason, "stop_sequence": stop_sequence},
                usage=anthropic_usage(usage),
            )
            + self._event("message_stop")
        )

    def _piece(self, piece: OutputPiece) -> bytes:
        if isinstance(piece, MadeCall):
            return self._stop_block() + self._call(piece)
        kind = type(piece)
        opening = b""
        if self._open is not kind:
            opening = self._stop_block() + self._start_block(kind)
        delta = (
            {"type": "thinking_delta", "thinking": piece.text}
            if isinstance(piece, Reasoning)
            else {"type": "text_delta", "text": piece.text}
        )
        return opening + self._delta(delta)

    def _call(self, made: MadeCall) -> bytes:
        block = {"type": "tool_use", "id": _tool_use_id(made), "name": made.call.name, "input": {}}
        out = self._event("content_block_start", index=self._index, content_block=block)
        out += self._delta({"type": "input_json_delta", "partial_json": made.call.arguments})
        out += self._event("content_block_stop", index=self._index)
        self._index += 1
        return out

    def _start_block(self, kind: type[Reasoning | Content]) -> bytes:
        self._open = kind
        block: dict[str, object] = (
            {"type": "thinking", "thinking": "", "signature": ""}
            if kind is Reasoning
            else {"type": "text", "text": ""}
        )
        return self._event("content_block_start", index=self._index, content_block=block)

    def _stop_block(self) -> bytes:
        if self._open is None:
            return b""
        out = b""
        if self._open is Reasoning:
            out = self._delta({"type": "signature_delta", "signature": UNSIGNED})
        out += self._event("content_block_stop", index=self._index)
        self._open = None
        self._index += 1
        return out

    def _delta(self, delta: Mapping[str, object]) -> bytes:
        return self._event("content_block_delta", index=self._index, delta=delta)

    def _event(self, kind: str, **fields: object) -> bytes:
        return sse.named_event(kind, {"type": kind, **fields})


class MessageBody:
    """An `Answer` in one piece."""

    def __init__(self, head: AnswerHead, reading: Reading) -> None:
        self._head = head
        self._reader = OutputReader(reading, head.id)
        self._pieces: list[OutputPiece] = []

    def start(self, prompt_index: int, prompt: AcceptedPrompt) -> bytes:
        """Nothing yet."""
        assert prompt_index == 0, "a chat has one prompt"
        return b""

    def score_prompt(self, prompt_index: int, logprobs: Sequence[TokenLogprobs | None]) -> bytes:
        """Nothing: they cannot be asked for."""
        raise AssertionError("the protocol has no log-probabilities")

    def put(self, prompt_index: int, delta: OutputDelta) -> bytes:
        """Collect a delta."""
        self._pieces += self._reader.put(delta)
        return b""

    def finish(self, usages: Sequence[Usage]) -> bytes:
        """The body."""
        (usage,) = usages
        message = _message(self._head, _blocks(self._pieces), usage)
        message["stop_reason"], message["stop_sequence"] = anthropic_stop(self._reader)
        return sse.dump(message)


def _tool_use(made: MadeCall) -> dict[str, object]:
    return {
        "type": "tool_use",
        "id": _tool_use_id(made),
        "name": made.call.name,
        "input": json.loads(made.call.arguments),
    }


def _blocks(pieces: Sequence[OutputPiece]) -> list[dict[str, object]]:
    """Blocks of a whole message: what comes in a row is one block."""
    blocks: list[dict[str, object]] = []
    for kind, group in itertools.groupby(pieces, key=type):
        if kind is MadeCall:
            blocks += [_tool_use(piece) for piece in group if isinstance(piece, MadeCall)]
            continue
        text = "".join(piece.text for piece in group if not isinstance(piece, MadeCall))
        if kind is Reasoning:
            blocks.append({"type": "thinking", "thinking": text, "signature": UNSIGNED})
        else:
            blocks.append({"type": "text", "text": text})
    return blocks or [{"type": "text", "text": ""}]
