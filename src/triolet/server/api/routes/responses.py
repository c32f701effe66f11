"""POST /v1/responses and what can be done with a response that is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import parse_qs

import trio

from triolet.engine.client import EngineClient
from triolet.errors import ClientStalled, InvalidRequest
from triolet.protocol.chat_request import ChatCompletionRequest, ChatMessage
from triolet.protocol.json_body import clip
from triolet.protocol.output_reader import Reading
from triolet.protocol.responses_answer import ResponseAnswer, ResponseObject
from triolet.protocol.responses_fields import ResponsesRequest
from triolet.protocol.responses_request import (
    RESPONSES_NAMES,
    chat_of,
    messages_of,
    parse_responses_request,
)
from triolet.protocol.sampling import chat_sampling, wire_names
from triolet.protocol.tools import flat_tools
from triolet.sampling_params import SamplingParams
from triolet.server.api.call import PARSE_INLINE_BYTES, Call
from triolet.server.api.chat import chat_plan, count_prompt
from triolet.server.api.error_response import Response, json_response
from triolet.server.api.generation import Collector, Job, submitted
from triolet.server.api.job import (
    answer_head,
    check_fields,
    check_model,
    defaults,
    report_ignored,
    request_job,
    run_job,
)
from triolet.server.api.response_store import ResponseNotFound, StoredResponse, page_of_items

PAGE_ITEMS = 20
PAGE_ITEMS_MAX = 100

INLINE_MESSAGES_MAX = 64
"""Looking at a message takes some 5 us: a longer conversation goes to a thread."""


async def create_response(call: Call) -> Response | None:
    """Make a response, at once or in the background.

    Raises:
        TrioletError: The request is at fault, or failed.
    """
    engine = call.services.serving_engine()
    (request, wire_items), ignored = await call.parse(_read)
    earlier = _earlier(call, request)
    with wire_names(RESPONSES_NAMES), flat_tools("parameters", request.tool_places):
        chat = await _chat_of(call, request, earlier)
        check_fields(call, chat)
        sampling = chat_sampling(chat, defaults(engine))
        plan = await chat_plan(call, engine, chat, sampling)
        report_ignored(call, (*ignored, *plan.ignored))
        job = request_job(call, chat, (plan.prompt,), plan.options, plan.sampling)
        head = answer_head(call, "resp_")
        stored: StoredResponse | None = None

        def keep(_: ResponseObject) -> None:
            if stored is not None and not request.background:
                call.services.responses.put(stored)

        answer = ResponseAnswer(
            head,
            _settings(request, sampling),
            plan.reading or Reading(),
            stream=request.stream or request.background,
            on_end=keep,
        )
        if request.store:
            stored = StoredResponse(
                response=answer.response,
                tenant=call.caller.tenant,
                input_items=_with_ids(wire_items, call.request_id),
                messages=(*earlier, *messages_of(request.items)),
                reply=answer.message,
            )
        if request.background:
            assert stored is not None, "background needs store"
            return await _in_background(call, engine, job, answer, stored, stream=request.stream)
        call.error_event = answer.fail
        with wire_names(plan.names):
            return await run_job(call, engine, job, answer, stream=request.stream)


async def count_input_tokens(call: Call) -> Response:
    """Tokens of the prompt that a request comes to.

    Raises:
        TrioletError: The request is at fault.
    """
    engine = call.services.loaded_engine()
    (request, _), ignored = await call.parse(_read)
    with wire_names(RESPONSES_NAMES), flat_tools("parameters", request.tool_places):
        chat = await _chat_of(call, request, _earlier(call, request))
        check_model(call, chat.model)
        report_ignored(call, ignored)
        count = await count_prompt(call, engine, chat)
    return json_response({"object": "response.input_tokens", "input_tokens": count})


async def get_response(call: Call) -> Response | None:
    """A response that is kept, or the events of one made in the background.

    Raises:
        TrioletError: It is not kept, or has no events.
    """
    stored = _stored(call)
    query = _query(call)
    if query.get("stream", "false") != "true":
        return json_response(stored.response)
    after = _number(query, "starting_after", -1, 0)
    await _follow(call, stored, after + 1)
    return None


async def delete_response(call: Call) -> Response:
    """Forget a response.

    Raises:
        ResponseNotFound: It is not kept.
    """
    response_id = call.variables["response_id"]
    call.services.responses.delete(response_id, call.caller.tenant)
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(call: Call) -> Response:
    """End a background response. Ending it twice is no fault.

    Raises:
        TrioletError: It is not kept, was not made in the background, or has ended.
    """
    stored = _stored(call)
    if stored.scope is None:
        raise InvalidRequest(
            "only background responses can be cancelled; close the connection of others, or use "
            "/v1/requests/{id}/cancel",
            param="response_id",
        )
    if not stored.has_ended:
        stored.response["status"] = "cancelled"
        stored.scope.cancel(reason="response cancelled")
    elif stored.response["status"] != "cancelled":
        raise InvalidRequest(
            f"the response cannot be cancelled: it is {stored.response['status']}",
            param="response_id",
        )
    return json_response(stored.response)


async def list_input_items(call: Call) -> Response:
    """What a response was asked, in pages.

    Raises:
        TrioletError: It is not kept, or the query is at fault.
    """
    stored = _stored(call)
    query = _query(call)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest(f"order must be 'asc' or 'desc', got {clip(order)}", param="order")
    return json_response(
        page_of_items(
            stored.input_items,
            after=query.get("after"),
            limit=_number(query, "limit", PAGE_ITEMS, 1, PAGE_ITEMS_MAX),
            descending=order == "desc",
        )
    )


async def _chat_of(
    call: Call, request: ResponsesRequest, earlier: tuple[ChatMessage, ...]
) -> ChatCompletionRequest:
    """The chat of a request, off the loop where it is long. Maybe a checkpoint."""
    work = partial(chat_of, request, earlier)
    if len(call.body) <= PARSE_INLINE_BYTES and len(earlier) <= INLINE_MESSAGES_MAX:
        return work()
    return await call.services.offload.run(work)


def _read(
    body: Mapping[str, object],
) -> tuple[tuple[ResponsesRequest, tuple[Mapping[str, object], ...]], tuple[str, ...]]:
    """The request, its items as the client wrote them, and fields without effect."""
    request, ignored = parse_responses_request(body)
    wire = body["input"]
    if isinstance(wire, str):
        wire = [{"role": "user", "content": [{"type": "input_text", "text": wire}]}]
    assert isinstance(wire, list), "the request was parsed"
    return (request, tuple({"type": "message", **item} for item in wire)), ignored


def _with_ids(
    items: tuple[Mapping[str, object], ...], request_id: str
) -> tuple[Mapping[str, object], ...]:
    return tuple(
        {**item, "id": item.get("id") or f"item_{request_id}_{i}"} for i, item in enumerate(items)
    )


def _earlier(call: Call, request: ResponsesRequest) -> tuple[ChatMessage, ...]:
    """The conversation that a request goes on from."""
    response_id = request.previous_response_id
    if response_id is None:
        return ()
    try:
        stored = call.services.responses.get(response_id, call.caller.tenant)
    except ResponseNotFound as error:
        error.param = "previous_response_id"
        raise
    if stored.response["status"] not in ("completed", "incomplete"):
        raise InvalidRequest(
            f"previous_response_id: the response is {stored.response['status']}, so there is "
            "nothing to go on from",
            param="previous_response_id",
        )
    return (*stored.messages, stored.reply())


def _settings(request: ResponsesRequest, sampling: SamplingParams) -> dict[str, object]:
    """Fields of the request that a response repeats."""
    form = None if request.text is None else request.text.format
    text: dict[str, object] = {"type": "text"} if form is None else {"type": form.type}
    if form is not None and form.type == "json_schema":
        text |= {"name": form.name, "schema": form.schema, "strict": form.strict}
    reasoning = request.reasoning
    choice = request.tool_choice
    return {
        "background": request.background,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": None,
        "metadata": dict(request.metadata or {}),
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": request.previous_response_id,
        "reasoning": {
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None,
        },
        "service_tier": "default",
        "store": request.store,
        "temperature": sampling.temperature,
        "text": {"format": text},
        "tool_choice": (
            (choice or "auto")
            if choice is None or isinstance(choice, str)
            else {"type": "function", "name": choice.name}
        ),
        "tools": [
            {
                "type": "function",
                "name": function.name,
                "description": function.description,
                "parameters": function.parameters,
                "strict": function.strict,
            }
            for function in request.functions
        ],
        "top_logprobs": 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": request.user,
    }


async def _in_background(
    call: Call,
    engine: EngineClient,
    job: Job,
    answer: ResponseAnswer,
    stored: StoredResponse,
    *,
    stream: bool,
) -> Response | None:
    offload = call.services.offload

    async def work(write: Callable[[bytes], None]) -> None:
        collector = Collector(answer, write, len(job.prompts))
        async with submitted(engine, offload, job, collector, lambda _: None):
            await collector.ended.wait()
            collector.check()
        await trio.lowlevel.checkpoint()  # what was cancelled must not be completed
        write(collector.body_end())

    call.services.responses.start(stored, answer, work)
    if not stream:
        return json_response(stored.response)
    await _follow(call, stored, 0)
    return None


async def _follow(call: Call, stored: StoredResponse, start: int) -> None:
    """Send the events of a response from a number on, until it has ended."""
    if stored.log is None:
        raise InvalidRequest(
            "only background responses can be streamed again; leave stream out", param="stream"
        )
    log, stalled = stored.log, None
    writer = call.open_events(call.services.loaded_engine().config.scheduler.stream_buffer_bytes)
    await writer.open(call.exchange)

    async def feed() -> None:
        async for event in log.read(start):
            writer.allow(len(event))  # it is kept anyway: a slow reader costs one more copy
            writer.write(event)
        writer.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        try:
            await writer.run()
        except ClientStalled as error:
            stalled = error
            nursery.cancel_scope.cancel(reason="client stalled")
    if stalled is not None:
        raise stalled


def _stored(call: Call) -> StoredResponse:
    return call.services.responses.get(call.variables["response_id"], call.caller.tenant)


def _query(call: Call) -> dict[str, str]:
    """The query string; the last value of a name counts."""
    text = call.exchange.scope["query_string"].decode("latin-1")
    return {name: values[-1] for name, values in parse_qs(text, max_num_fields=16).items()}


def _number(
    query: Mapping[str, str], name: str, default: int, low: int, high: int = 1 << 31
) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and low <= int(text) <= high):
        raise InvalidRequest(
            f"{name} must be an integer, {low} or more, got {clip(text)}", param=name
        )
    return int(text)
