"""How a simulated client talks to the API: the real routes, in memory, on the virtual clock."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import trio

from triolet.errors import EngineDead, Rejected, RequestFailed, TrioletError
from triolet.output import OutputDelta, Usage
from triolet.request import FinishReason
from triolet.testing.http import AsgiClient, HttpStream

if TYPE_CHECKING:
    from triolet.testing.clients import SimulatedClient

PATH = "/v1/completions"
DONE = "[DONE]"

ERROR_CLASSES: dict[str, type[TrioletError]] = {
    **dict.fromkeys(("queue_full", "not_serving", "context_length_exceeded"), Rejected),
    **dict.fromkeys(("deadline_exceeded", "poison_request", "request_failed"), RequestFailed),
    "engine_dead": EngineDead,
}
"""What the code of an error answer means; another code is a violation, as whatever it is."""


class StreamBroken(TrioletError):
    """An answer that is none: no terminator, no finish reason, no JSON."""

    code = "stream_broken"


async def ask_over_http(client: SimulatedClient, http: AsgiClient) -> None:
    """Post the request of a client and read the answer. Sets how it ended.

    Raises:
        TrioletError: What an error answer says, as the library would have raised it.
    """
    client.is_entering = True
    error: TrioletError | None = None
    try:
        async with http.stream(PATH, _body(client), {"x-request-id": client.label}) as stream:
            client.is_entering, client.is_streaming = False, stream.status == 200
            with trio.CancelScope() as scope:

                def disconnect() -> None:
                    stream.disconnect()
                    scope.cancel()

                client.disconnect_with(disconnect)
                error = await _read(client, stream)
            if scope.cancelled_caught:
                client.end = "left"
    finally:
        client.is_entering = False
    if error is not None:  # raised out here: the stream's nursery would wrap it
        raise error


async def _read(client: SimulatedClient, stream: HttpStream) -> TrioletError | None:
    """Read an answer, or as much of it as the client wants; returns the error it holds."""
    plan = client.plan
    if plan.ignores_s is not None:
        await trio.sleep(plan.ignores_s)
        client.end = "left"
        return None
    if stream.status == 200 and plan.streams:
        return await _read_events(client, stream)
    body = await stream.read()
    if stream.gone:
        client.end = "left"
    elif stream.status != 200:
        return _error(json.loads(body))
    else:
        _take_body(client, json.loads(body))
    return None


def _body(client: SimulatedClient) -> dict[str, object]:
    plan, sampling = client.plan, client.plan.sampling
    body: dict[str, object] = {
        "prompt": "".join(map(chr, plan.prompt)) if plan.is_text else list(plan.prompt),
        "n": sampling.n,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop),
        "priority": plan.priority,
        "return_token_ids": True,
        "stream": plan.streams,
    }
    if plan.streams:
        body["stream_options"] = {"include_usage": True}
    if plan.cache_salt is not None:
        body["cache_salt"] = plan.cache_salt
    if plan.timeouts.total is not None:
        body["deadline_ms"] = round(plan.timeouts.total * 1000)
    return body


async def _read_events(client: SimulatedClient, stream: HttpStream) -> TrioletError | None:
    """Read a stream up to the end of its body: whoever wants no more disconnects first."""
    plan = client.plan
    pieces = 0
    error: TrioletError | None = None
    async with aclosing(stream.events()) as events:
        async for event in events:
            if client.end is not None:
                if client.end == "finished":
                    error = StreamBroken("an event came behind the terminator")
            elif event == DONE:
                client.end = None if error is not None else "finished"
            elif "error" in (chunk := json.loads(event)):
                error = _error(chunk)
            else:
                pieces += _take_chunk(client, chunk)
                if plan.breaks_after is not None and pieces >= plan.breaks_after:
                    client.end = "left"
                    stream.disconnect()
                elif plan.read_delay_s:
                    await trio.sleep(plan.read_delay_s)
    if stream.gone:
        client.end = "left"
    elif client.end is None and error is None:
        error = StreamBroken("the stream ended without its terminator")
    return error


def _take_chunk(client: SimulatedClient, chunk: dict[str, Any]) -> int:
    """Take what a chunk brings; returns the number of pieces."""
    if "usage" in chunk:
        client.usage = _usage(chunk["usage"])
    pieces = 0
    for choice in chunk["choices"]:
        if choice["token_ids"] or choice["finish_reason"] is not None:  # not its opening
            client.take(_delta(choice))
            pieces += 1
    return pieces


def _take_body(client: SimulatedClient, body: dict[str, Any]) -> None:
    for choice in body["choices"]:
        client.take(_delta(choice))
    client.usage = _usage(body["usage"])
    client.end = "finished"


def _delta(choice: dict[str, Any]) -> OutputDelta:
    return OutputDelta(
        choice["index"],
        choice["text"],
        tuple(choice["token_ids"]),
        finish_reason=_finish_reason(choice),
        stop_reason=choice.get("stop_reason"),
    )


def _finish_reason(choice: dict[str, Any]) -> FinishReason | None:
    match choice["finish_reason"]:
        case None:
            return None
        case "length" if choice.get("stop_reason") == "timeout":
            return FinishReason.TIMEOUT
        case "abort":
            return FinishReason.CANCELLED
        case reason:
            return FinishReason(reason)


def _usage(usage: dict[str, Any]) -> Usage:
    return Usage(usage["prompt_tokens"], usage["completion_tokens"])


def _error(body: dict[str, Any]) -> TrioletError:
    error = body["error"]
    code = str(error["code"])
    return ERROR_CLASSES.get(code, StreamBroken)(error["message"], code=code)
