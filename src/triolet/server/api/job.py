"""Steps that every generating route takes: check, name, run."""

from __future__ import annotations

from collections.abc import Mapping

from triolet.engine.client import EngineClient, Prompt, PromptOptions
from triolet.errors import InvalidRequest, ModelNotFound
from triolet.protocol.answer import Answer, AnswerHead
from triolet.protocol.fields import ignored_header
from triolet.protocol.generation_request import DEADLINE_MS_MAX, GenerationFields
from triolet.protocol.json_body import clip
from triolet.protocol.logprobs import TokenIdNames, TokenNames
from triolet.protocol.sampling import check_common
from triolet.sampling_params import SamplingParams
from triolet.server.api.call import Call
from triolet.server.api.error_response import Response
from triolet.server.api.generation import Job, answer_events, answer_whole
from triolet.server.api.load import load_headers
from triolet.server.api.observed import ObservedAnswer, log_request

DEADLINE_HEADER = "x-request-deadline-ms"


def check_fields(call: Call, request: GenerationFields) -> None:
    """Check what is neither sampling nor the prompt.

    Raises:
        InvalidRequest: A rule between fields is broken.
        ModelNotFound: The request is for another model.
    """
    check_common(request)
    check_model(call, request.model)


def check_model(call: Call, model: str | None) -> None:
    """Refuse a model that is not served.

    Raises:
        ModelNotFound: It is not.
    """
    names = call.services.model_names()
    if model is not None and model not in names:
        raise ModelNotFound(
            f"the model {clip(model)} is not served; served: {', '.join(names)}",
            param="model",
        )


def report_ignored(call: Call, ignored: tuple[str, ...]) -> None:
    """List fields without effect in `X-Triolet-Ignored`."""
    if ignored:
        value = ignored_header(ignored).encode("ascii")
        call.exchange.common_headers.append((b"x-triolet-ignored", value))


def defaults(engine: EngineClient) -> Mapping[str, object]:
    """Sampling defaults of the model, as the operator left or changed them."""
    return engine.config.model.sampling_defaults(engine.facts.generation)


def answer_head(call: Call, prefix: str) -> AnswerHead:
    """What every part of the answer repeats; its id is the request's with a prefix."""
    services = call.services
    return AnswerHead(
        id=f"{prefix}{call.request_id}",
        created=int(services.clock()),
        model=services.model_names()[0],
    )


def token_names(engine: EngineClient, request: GenerationFields) -> TokenNames:
    """What tokens are called in the logprobs of an answer."""
    own: TokenNames = engine.tokenizer
    return TokenIdNames(own) if request.return_tokens_as_token_ids else own


def prompt_options(request: GenerationFields) -> PromptOptions:
    """How a prompt is cut that is too long."""
    return PromptOptions(
        truncate_prompt_tokens=request.truncate_prompt_tokens,
        truncation_side=request.truncation_side or "left",
    )


def request_job(
    call: Call,
    request: GenerationFields,
    prompts: tuple[Prompt, ...],
    options: PromptOptions,
    sampling: SamplingParams,
) -> Job:
    """What the engine is asked for."""
    job = Job(
        prompts=prompts,
        options=options,
        sampling=sampling,
        deadline_s=_deadline_s(call, request),
        priority=request.priority,
        cache_salt=call.caller.cache_salt(request.cache_salt),
        tenant=call.caller.tenant,
        label=request.request_id or call.label,
    )
    log_request(call, job)
    return job


def _deadline_s(call: Call, request: GenerationFields) -> float | None:
    """Seconds the client gives, in the body or, for clients that cannot, in a header."""
    if request.deadline_ms is not None:
        return request.deadline_ms / 1000
    value = call.exchange.headers.get(DEADLINE_HEADER)
    if value is None:
        return None
    is_number = value.isascii() and value.isdecimal() and len(value) <= len(str(DEADLINE_MS_MAX))
    if not is_number or not 1 <= int(value) <= DEADLINE_MS_MAX:
        raise InvalidRequest(
            f"the header X-Request-Deadline-Ms must be an integer in 1..{DEADLINE_MS_MAX} "
            f"(milliseconds), got {value[:20]!r}",
            param="X-Request-Deadline-Ms",
        )
    return int(value) / 1000


async def run_job(
    call: Call, engine: EngineClient, job: Job, answer: Answer, *, stream: bool
) -> Response | None:
    """Run a job and answer, whole or as a stream. A checkpoint.

    Raises:
        TrioletError: It was not admitted, or failed.
    """
    offload = call.services.offload
    answer = ObservedAnswer(answer, call)
    if not stream:
        response = await answer_whole(engine, offload, job, answer)
        return response.with_headers(*load_headers(call, engine))
    writer = call.open_events(engine.config.scheduler.stream_buffer_bytes)
    await answer_events(engine, offload, job, answer, call.exchange, writer)
    return None
