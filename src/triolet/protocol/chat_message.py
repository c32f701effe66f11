"""Fields of an assistant's message, whole or as a delta, from what was read in the output."""

from __future__ import annotations

from collections.abc import Sequence

from triolet.protocol.output_reader import MadeCall, OutputPiece
from triolet.protocol.parsers.call import Content, Reasoning


def message_fields(pieces: Sequence[OutputPiece], *, stream: bool) -> dict[str, object]:
    """What pieces add to a message; fields that they do not touch are absent.

    Reasoning stands under both of its names: vLLM's new one, and the older one that more
    clients know.

    Args:
        pieces: In order.
        stream: Calls carry their index, by which a client joins deltas.
    """
    fields: dict[str, object] = {}
    reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
    if reasoning:
        fields["reasoning"] = fields["reasoning_content"] = reasoning
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    if content:
        fields["content"] = content
    calls = [_call(piece, stream=stream) for piece in pieces if isinstance(piece, MadeCall)]
    if calls:
        fields["tool_calls"] = calls
    return fields


def _call(made: MadeCall, *, stream: bool) -> dict[str, object]:
    value: dict[str, object] = {"index": made.index} if stream else {}
    value["id"] = made.id
    value["type"] = "function"
    value["function"] = {"name": made.call.name, "arguments": made.call.arguments}
    return value
