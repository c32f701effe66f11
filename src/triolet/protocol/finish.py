"""Why an output ended, on the wire. One function for streams and whole answers."""

from __future__ import annotations

from triolet.output import OutputDelta
from triolet.request import FinishReason

_WIRE: dict[FinishReason, str] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    # Clients know no "timeout": the answer is cut short, as by a length; stop_reason says by what.
    FinishReason.TIMEOUT: "length",
    FinishReason.CANCELLED: "abort",  # vLLM's word
}


def wire_finish(delta: OutputDelta) -> tuple[str | None, str | int | None]:
    """(`finish_reason`, `stop_reason`) of a delta; (None, None) while its output goes on."""
    if delta.finish_reason is None:
        return None, None
    if delta.finish_reason is FinishReason.TIMEOUT:
        return _WIRE[delta.finish_reason], "timeout"
    return _WIRE[delta.finish_reason], delta.stop_reason


def chat_finish(
    delta: OutputDelta, *, made_calls: bool, named: bool
) -> tuple[str | None, str | int | None]:
    """As `wire_finish`, for an output that was read for calls.

    Args:
        delta: The last delta.
        made_calls: The whole output holds a call.
        named: The client chose the function itself: then OpenAI says "stop".
    """
    finish_reason, stop_reason = wire_finish(delta)
    if finish_reason == "stop" and made_calls and not named:
        return "tool_calls", stop_reason
    return finish_reason, stop_reason
