"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

from triolet.protocol.anthropic_answer import (
    MessageBody,
    MessageStream,
    anthropic_error_event,
)
from triolet.protocol.anthropic_request import (
    ANTHROPIC_NAMES,
    parse_count_tokens_request,
    parse_messages_request,
)
from triolet.protocol.output_reader import Reading
from triolet.protocol.sampling import chat_sampling, wire_names
from triolet.server.api.call import Call
from triolet.server.api.chat import chat_plan, count_prompt
from triolet.server.api.error_response import Response, json_response
from triolet.server.api.job import (
    answer_head,
    check_fields,
    check_model,
    defaults,
    report_ignored,
    request_job,
    run_job,
)


async def create_message(call: Call) -> Response | None:
    """Answer a chat.

    Raises:
        TrioletError: The request is at fault, or failed.
    """
    engine = call.services.serving_engine()
    _, chat, ignored = await call.parse(parse_messages_request)
    check_fields(call, chat)
    with wire_names(ANTHROPIC_NAMES):
        sampling = chat_sampling(chat, defaults(engine))
        plan = await chat_plan(call, engine, chat, sampling)
        report_ignored(call, (*ignored, *plan.ignored))
        job = request_job(call, chat, (plan.prompt,), plan.options, plan.sampling)
        head = answer_head(call, "msg_")
        reading = plan.reading or Reading()
        call.error_event = anthropic_error_event
        answer = MessageStream(head, reading) if chat.stream else MessageBody(head, reading)
        with wire_names(plan.names):
            return await run_job(call, engine, job, answer, stream=chat.stream)


async def count_tokens(call: Call) -> Response:
    """Tokens of a chat's prompt.

    Raises:
        InvalidRequest: The request is at fault.
    """
    engine = call.services.loaded_engine()
    chat = await call.parse(parse_count_tokens_request)
    check_model(call, chat.model)
    with wire_names(ANTHROPIC_NAMES):
        return json_response({"input_tokens": await count_prompt(call, engine, chat)})
