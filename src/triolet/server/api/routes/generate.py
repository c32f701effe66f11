"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from triolet.engine.client import EngineClient, Prompt
from triolet.errors import ModelNotFound
from triolet.protocol.answer import Answer, AnswerHead
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
from triolet.protocol.fields import ignored_header
from triolet.protocol.generation_request import GenerationFields
from triolet.protocol.json_body import clip
from triolet.protocol.sampling import (
    CHAT_NAMES,
    chat_sampling,
    check_common,
    completion_sampling,
    wire_names,
)
from triolet.sampling_params import SamplingParams
from triolet.server.api.call import Call
from triolet.server.api.error_response import Response
from triolet.server.api.generation import Job, answer_events, answer_whole


async def chat_completions(call: Call) -> Response | None:
    """Answer a chat.

    Raises:
        TrioletError: The request is at fault, or failed.
    """
    engine = call.services.serving_engine()
    request, ignored = await call.parse(parse_chat_request)
    _admit_fields(call, request, ignored)
    sampling = chat_sampling(request, _defaults(engine))
    with wire_names(CHAT_NAMES):
        prompt = await _chat_prompt(engine, request)
        job = _job(call, request, (prompt,), sampling)
        shape = ChatShape(
            n=request.n,
            names=engine.tokenizer,
            logprobs=request.logprobs,
            return_token_ids=request.return_token_ids,
            include_usage=request.include_usage,
            continuous_usage=request.continuous_usage,
            echo=_chat_echo(request),
        )
        head = _head(call, "chatcmpl")
        answer = ChatStream(head, shape) if request.stream else ChatBody(head, shape)
        return await _run(call, engine, job, answer, stream=request.stream)


async def completions(call: Call) -> Response | None:
    """Answer prompts.

    Raises:
        TrioletError: The request is at fault, or failed.
    """
    engine = call.services.serving_engine()
    request, ignored = await call.parse(parse_completion_request)
    _admit_fields(call, request, ignored)
    sampling = completion_sampling(request, _defaults(engine))
    prompts = request.prompts
    if not request.add_special_tokens:
        prompts = tuple(
            [
                await engine.tokenize(prompt, add_special_tokens=False)
                if isinstance(prompt, str)
                else prompt
                for prompt in prompts
            ]
        )
    job = attrs.evolve(
        _job(call, request, prompts, sampling),
        echo=request.echo,
        echo_pieces=request.echo and request.logprobs is not None,
    )
    shape = CompletionShape(
        n=request.n,
        num_prompts=len(prompts),
        names=engine.tokenizer,
        logprobs=request.logprobs is not None,
        prompt_logprobs=request.prompt_logprobs is not None,
        echo=request.echo,
        prompt_only=request.max_tokens == 0,
        return_token_ids=request.return_token_ids,
        include_usage=request.include_usage,
        continuous_usage=request.continuous_usage,
    )
    head = _head(call, "cmpl")
    answer = CompletionStream(head, shape) if request.stream else CompletionBody(head, shape)
    return await _run(call, engine, job, answer, stream=request.stream)


def _admit_fields(call: Call, request: GenerationFields, ignored: tuple[str, ...]) -> None:
    check_common(request)
    names = call.services.model_names()
    if request.model is not None and request.model not in names:
        raise ModelNotFound(
            f"the model {clip(request.model)} is not served; served: {', '.join(names)}",
            param="model",
        )
    if ignored:
        value = ignored_header(ignored).encode("ascii")
        call.exchange.common_headers.append((b"x-triolet-ignored", value))


def _defaults(engine: EngineClient) -> Mapping[str, object]:
    return {} if engine.config.model.generation_config == "none" else engine.facts.generation


def _head(call: Call, prefix: str) -> AnswerHead:
    services = call.services
    return AnswerHead(
        id=f"{prefix}-{call.request_id}",
        created=int(services.clock()),
        model=services.model_names()[0],
    )


def _job(
    call: Call, request: GenerationFields, prompts: tuple[Prompt, ...], sampling: SamplingParams
) -> Job:
    return Job(
        prompts=prompts,
        sampling=sampling,
        deadline_s=None if request.deadline_ms is None else request.deadline_ms / 1000,
        priority=request.priority,
        cache_salt=call.caller.cache_salt(request.cache_salt),
        tenant=call.caller.tenant,
        label=request.request_id or call.label,
    )


async def _chat_prompt(
    engine: EngineClient, request: ChatCompletionRequest
) -> tuple[dict[str, object], ...] | tuple[int, ...]:
    """Messages for the engine to render, or ids where it must be told how to render them."""
    messages = request.template_messages
    plain = (
        request.add_generation_prompt
        and not request.chat_template_kwargs
        and request.documents is None
    )
    if plain:
        return messages
    return await engine.tokenize(
        messages,
        documents=request.documents,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        template_kwargs=request.chat_template_kwargs,
    )


def _chat_echo(request: ChatCompletionRequest) -> str:
    """With `echo`, an answer that goes on with the last message begins with its text."""
    if not request.echo or request.messages[-1].role != "assistant":
        return ""
    last = len(request.messages) - 1
    return str(template_message(last, request.messages[last])["content"])


async def _run(
    call: Call, engine: EngineClient, job: Job, answer: Answer, *, stream: bool
) -> Response | None:
    offload = call.services.offload
    if not stream:
        return await answer_whole(engine, offload, job, answer)
    writer = call.open_events(engine.config.scheduler.stream_buffer_bytes)
    await answer_events(engine, offload, job, answer, call.exchange, writer)
    return None
