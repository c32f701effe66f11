"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import attrs

from triolet.errors import InvalidRequest
from triolet.protocol.chat_answer import ChatBody, ChatShape, ChatStream
from triolet.protocol.chat_request import (
    ChatCompletionRequest,
    parse_chat_request,
    template_message,
)
from triolet.protocol.completion_answer import (
    CompletionBody,
    CompletionShape,
    CompletionStream,
)
from triolet.protocol.completion_request import parse_completion_request
from triolet.protocol.sampling import (
    CHAT_NAMES,
    WIRE_NAMES,
    chat_sampling,
    completion_sampling,
    wire_names,
)
from triolet.server.api.call import Call
from triolet.server.api.chat import chat_plan
from triolet.server.api.error_response import Response
from triolet.server.api.job import (
    answer_head,
    check_fields,
    defaults,
    prompt_options,
    report_ignored,
    request_job,
    run_job,
    token_names,
)


async def chat_completions(call: Call) -> Response | None:
    """Answer a chat.

    Raises:
        TrioletError: The request is at fault, or failed.
    """
    engine = call.services.serving_engine()
    request, ignored = await call.parse(parse_chat_request)
    check_fields(call, request)
    sampling = chat_sampling(request, defaults(engine))
    with wire_names(CHAT_NAMES):
        plan = await chat_plan(call, engine, request, sampling)
        report_ignored(call, (*ignored, *plan.ignored))
        job = request_job(call, request, (plan.prompt,), plan.options, plan.sampling)
        # What is hidden in the text must not show in the tokens.
        hides = plan.reading is not None and plan.reading.hides_reasoning
        shape = ChatShape(
            n=request.n,
            names=token_names(engine, request),
            logprobs=request.logprobs and not hides,
            return_token_ids=request.return_token_ids and not hides,
            include_usage=request.include_usage,
            continuous_usage=request.continuous_usage,
            echo=_chat_echo(request),
            role=(
                call.services.config.response_role
                if request.add_generation_prompt
                else request.messages[-1].role
            ),
            reading=plan.reading,
        )
        head = answer_head(call, "chatcmpl-")
        answer = ChatStream(head, shape) if request.stream else ChatBody(head, shape)
        with wire_names(plan.names):
            return await run_job(call, engine, job, answer, stream=request.stream)


async def completions(call: Call) -> Response | None:
    """Answer prompts.

    Raises:
        TrioletError: The request is at fault, or failed.
    """
    engine = call.services.serving_engine()
    request, ignored = await call.parse(parse_completion_request)
    check_fields(call, request)
    report_ignored(call, ignored)
    sampling = completion_sampling(request, defaults(engine))
    prompts = request.prompts
    options = attrs.evolve(prompt_options(request), add_special_tokens=request.add_special_tokens)
    job = attrs.evolve(
        request_job(call, request, prompts, options, sampling),
        echo=request.echo,
        echo_pieces=request.echo and request.logprobs is not None,
    )
    room = engine.config.scheduler.max_live_requests
    if len(prompts) > room:
        raise InvalidRequest(
            f"prompt has {len(prompts)} entries, more than this server takes at a time "
            f"({room}, max_live_requests); send them in several requests",
            param="prompt",
        )
    shape = CompletionShape(
        n=request.n,
        num_prompts=len(prompts),
        names=token_names(engine, request),
        logprobs=request.logprobs is not None,
        prompt_logprobs=request.prompt_logprobs is not None,
        echo=request.echo,
        prompt_only=request.max_tokens == 0,
        return_token_ids=request.return_token_ids,
        include_usage=request.include_usage,
        continuous_usage=request.continuous_usage,
    )
    head = answer_head(call, "cmpl-")
    answer = CompletionStream(head, shape) if request.stream else CompletionBody(head, shape)
    with wire_names(WIRE_NAMES):
        return await run_job(call, engine, job, answer, stream=request.stream)


def _chat_echo(request: ChatCompletionRequest) -> str:
    """With `echo`, an answer that goes on with the last message begins with its text."""
    if not request.echo or request.messages[-1].role != "assistant":
        return ""
    last = len(request.messages) - 1
    return str(template_message(last, request.messages[last])["content"])
