"""Answers of /v1/responses: a response object that grows, and the events that tell of it.

Items are made one after the other, each begun and ended before the next: reasoning, message,
calls. The events of a stream and the whole response come from the same items, so that a client
may take the one for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from triolet.errors import TrioletError
from triolet.output import OutputDelta, TokenLogprobs, Usage
from triolet.protocol import sse
from triolet.protocol.answer import AcceptedPrompt, AnswerHead
from triolet.protocol.chat_request import ChatMessage, FunctionCall, ToolCall
from triolet.protocol.error_object import cut_message
from triolet.protocol.output_reader import MadeCall, OutputPiece, OutputReader, Reading
from triolet.protocol.parsers.call import Content, Reasoning

ResponseObject = dict[str, object]
Item = dict[str, object]


class ResponseAnswer:
    """An `Answer` as a response object.

    Args:
        head: Its id begins with "resp_".
        settings: Fields of the request that the response repeats.
        reading: How the output is read.
        stream: Write events; else `finish` writes the response.
        on_end: Told the response once, when it has ended in any way.

    Attributes:
        response: The response as it is now.
    """

    def __init__(
        self,
        head: AnswerHead,
        settings: Mapping[str, object],
        reading: Reading,
        *,
        stream: bool,
        on_end: Callable[[ResponseObject], None] | None = None,
    ) -> None:
        self._id = head.id.removeprefix("resp_")
        self._reader = OutputReader(reading, head.id)
        self._reading = reading
        self._stream = stream
        self._on_end = on_end
        self._sequence = 0
        self._item: Item | None = None
        self._texts: list[str] = []
        self._output: list[Item] = []
        self.response: ResponseObject = {
            "id": head.id,
            "object": "response",
            "created_at": head.created,
            "status": "queued",
            "error": None,
            "incomplete_details": None,
            "model": head.model,
            "output": self._output,
            "usage": None,
            **settings,
        }

    def start(self, prompt_index: int, prompt: AcceptedPrompt) -> bytes:
        """response.created and response.in_progress."""
        assert prompt_index == 0, "a response has one prompt"
        self.response["status"] = "in_progress"
        return self._lifecycle("response.created") + self._lifecycle("response.in_progress")

    def score_prompt(self, prompt_index: int, logprobs: Sequence[TokenLogprobs | None]) -> bytes:
        """Nothing: they cannot be asked for."""
        raise AssertionError("the protocol has no log-probabilities of the prompt")

    def put(self, prompt_index: int, delta: OutputDelta) -> bytes:
        """Events of a delta."""
        return b"".join(map(self._piece, self._reader.put(delta)))

    def finish(self, usages: Sequence[Usage]) -> bytes:
        """The end of the last item, and the response."""
        (usage,) = usages
        finish_reason, _ = self._reader.finish
        out = b""
        if not self._output and self._item is None:
            out += self._begin(Content)  # an empty answer is an empty text
        status = "completed"
        if finish_reason == "length":
            status = "incomplete"
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        out += self._end_item(status)
        self.response["usage"] = self._usage(usage)
        return out + self._end(status)

    def fail(self, error: TrioletError) -> bytes:
        """The response has failed: response.failed, if there are events."""
        self._item = None
        self.response["error"] = {
            "code": "rate_limit_exceeded" if error.http_status == 429 else "server_error",
            "message": cut_message(error.message),
        }
        return self._end("failed")

    def cancel(self) -> bytes:
        """The response was cancelled. There is no event for it: the stream just ends."""
        self._item = None
        self.response["status"] = "cancelled"
        self._tell_end()
        return b""

    def message(self) -> ChatMessage:
        """The output as a turn of a chat, to go on from."""
        return message_of(self._output)

    def _piece(self, piece: OutputPiece) -> bytes:
        if isinstance(piece, MadeCall):
            return self._end_item("completed") + self._call(piece)
        kind = type(piece)
        out = b""
        if self._item is None or self._item["type"] != _ITEM_TYPES[kind]:
            out = self._end_item("completed") + self._begin(kind)
        self._texts.append(piece.text)
        name = "response.output_text.delta" if kind is Content else "response.reasoning_text.delta"
        more: dict[str, object] = {"logprobs": []} if kind is Content else {}
        return out + self._event(name, content_index=0, delta=piece.text, **more)

    def _begin(self, kind: type[Reasoning | Content]) -> bytes:
        number = len(self._output)
        self._texts = []
        if kind is Content:
            item: Item = {
                "id": f"msg_{self._id}_{number}",
                "type": "message",
                "status": "in_progress",
                "role": "assistant",
                "content": [],
            }
        else:
            item = {
                "id": f"rs_{self._id}_{number}",
                "type": "reasoning",
                "status": "in_progress",
                "summary": [],
                "content": [],
            }
        self._item = item
        added = self._event("response.output_item.added", item=item)
        return added + self._event(
            "response.content_part.added", content_index=0, part=self._part()
        )

    def _part(self) -> dict[str, object]:
        assert self._item is not None
        text = "".join(self._texts)
        if self._item["type"] == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _end_item(self, status: str) -> bytes:
        if self._item is None:
            return b""
        part = self._part()
        if self._item["type"] == "message":
            out = self._event(
                "response.output_text.done", content_index=0, text=part["text"], logprobs=[]
            )
        else:
            out = self._event("response.reasoning_text.done", content_index=0, text=part["text"])
        out += self._event("response.content_part.done", content_index=0, part=part)
        self._item["content"] = [part]
        return out + self._item_done(status)

    def _call(self, made: MadeCall) -> bytes:
        self._item = {
            "id": f"fc_{self._id}_{len(self._output)}",
            "type": "function_call",
            "status": "in_progress",
            "call_id": made.id,
            "name": made.call.name,
            "arguments": "",
        }
        arguments = made.call.arguments
        out = self._event("response.output_item.added", item=self._item)
        out += self._event("response.function_call_arguments.delta", delta=arguments)
        out += self._event(
            "response.function_call_arguments.done", name=made.call.name, arguments=arguments
        )
        self._item["arguments"] = arguments
        return out + self._item_done("completed")

    def _item_done(self, status: str) -> bytes:
        assert self._item is not None
        self._item["status"] = status
        out = self._event("response.output_item.done", item=self._item)
        self._output.append(self._item)
        self._item = None
        return out

    def _end(self, status: str) -> bytes:
        self.response["status"] = status
        self._tell_end()
        if self._stream:
            return self._lifecycle(f"response.{status}")
        return sse.dump(self.response)

    def _tell_end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self.response)

    def _usage(self, usage: Usage) -> dict[str, object]:
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reader.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    def _lifecycle(self, name: str) -> bytes:
        return self._numbered(name, {"response": self.response})

    def _event(self, event: str, /, **fields: object) -> bytes:
        """An event of the item at work; an item of its own tells its id itself."""
        assert self._item is not None
        where: dict[str, object] = {"output_index": len(self._output)}
        if "item" not in fields:
            where["item_id"] = self._item["id"]
        return self._numbered(event, {**where, **fields})

    def _numbered(self, name: str, fields: Mapping[str, object]) -> bytes:
        if not self._stream:
            return b""
        value = {"type": name, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return sse.named_event(name, value)


_ITEM_TYPES: Mapping[type, str] = {Content: "message", Reasoning: "reasoning"}


def message_of(output: Sequence[Item]) -> ChatMessage:
    """Output items as one assistant's turn."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for item in output:
        if item["type"] == "function_call":
            function = FunctionCall(name=str(item["name"]), arguments=str(item["arguments"]))
            calls.append(ToolCall(id=str(item["call_id"]), function=function))
            continue
        into = texts if item["type"] == "message" else thoughts
        content = item["content"]
        assert isinstance(content, list)
        into.extend(str(part["text"]) for part in content)
    return ChatMessage(
        role="assistant",
        content="".join(texts),
        tool_calls=tuple(calls) or None,
        reasoning="".join(thoughts) or None,
    )
