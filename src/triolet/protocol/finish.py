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
