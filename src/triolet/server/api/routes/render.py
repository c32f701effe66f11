"""POST /v1/chat/completions/render and /v1/completions/render: the prompt, and nothing runs."""

from __future__ import annotations

from functools import partial

import attrs

from triolet.engine.client import EngineClient, Prompt, PromptOptions
from triolet.protocol.chat_request import parse_chat_request
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
from triolet.server.api.error_response import Response, json_response
from triolet.server.api.job import check_fields, defaults, prompt_options, report_ignored


async def render_chat(call: Call) -> Response:
    """What the model would read of a chat.

    Raises:
        InvalidRequest: The request is at fault, as it would be if it ran.
    """
    engine = call.services.serving_engine()
    request, ignored = await call.parse(parse_chat_request)
    check_fields(call, request)
    sampling = chat_sampling(request, defaults(engine))
    with wire_names(CHAT_NAMES):
        plan = await chat_plan(call, engine, request, sampling)
        report_ignored(call, (*ignored, *plan.ignored))
        prompt = await _rendered(call, engine, plan.prompt, plan.options)
    return json_response({"object": "chat.completion.render", **_head(call, engine), **prompt})


async def render_completion(call: Call) -> Response:
    """What the model would read of each prompt.

    Raises:
        InvalidRequest: The request is at fault, as it would be if it ran.
    """
    engine = call.services.serving_engine()
    request, ignored = await call.parse(parse_completion_request)
    check_fields(call, request)
    report_ignored(call, ignored)
    completion_sampling(request, defaults(engine))
    options = attrs.evolve(prompt_options(request), add_special_tokens=request.add_special_tokens)
    with wire_names(WIRE_NAMES):
        prompts = [
            {"index": index, **await _rendered(call, engine, prompt, options)}
            for index, prompt in enumerate(request.prompts)
        ]
    return json_response(
        {"object": "text_completion.render", **_head(call, engine), "prompts": prompts}
    )


def _head(call: Call, engine: EngineClient) -> dict[str, object]:
    return {"model": call.services.model_names()[0], "max_model_len": engine.max_model_len}


async def _rendered(
    call: Call, engine: EngineClient, prompt: Prompt, options: PromptOptions
) -> dict[str, object]:
    token_ids = await engine.tokenize(prompt, options)
    decode = partial(engine.tokenizer.decode, token_ids, skip_special_tokens=False)
    text = await call.services.offload.run(decode)
    return {"prompt": text, "prompt_token_ids": list(token_ids), "count": len(token_ids)}
