"""What is noted of one generating request: its log lines, and figures for its trace."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import attrs
import trio

from triolet.engine.client import Prompt
from triolet.output import OutputDelta, TokenLogprobs, Usage
from triolet.protocol.answer import AcceptedPrompt, Answer
from triolet.sampling_params import SamplingParams
from triolet.server.api.call import Call
from triolet.server.api.generation import Job
from triolet.telemetry.log import log_event

logger = logging.getLogger("triolet.server")


class ObservedAnswer:
    """An `Answer` that tells a call when its first output came and what was used.

    Args:
        answer: What makes the bytes.
        call: Whose `figures` are filled.
    """

    def __init__(self, answer: Answer, call: Call) -> None:
        self._answer = answer
        self._figures = call.figures
        self._start = trio.current_time()

    def start(self, prompt_index: int, prompt: AcceptedPrompt) -> bytes:
        """See `Answer`."""
        return self._answer.start(prompt_index, prompt)

    def score_prompt(self, prompt_index: int, logprobs: Sequence[TokenLogprobs | None]) -> bytes:
        """See `Answer`."""
        return self._answer.score_prompt(prompt_index, logprobs)

    def put(self, prompt_index: int, delta: OutputDelta) -> bytes:
        """See `Answer`."""
        if self._figures.first_output_s is None:
            self._figures.first_output_s = trio.current_time() - self._start
        return self._answer.put(prompt_index, delta)

    def finish(self, usages: Sequence[Usage]) -> bytes:
        """See `Answer`."""
        self._figures.prompt_tokens = sum(usage.prompt_tokens for usage in usages)
        self._figures.completion_tokens = sum(usage.completion_tokens for usage in usages)
        return self._answer.finish(usages)


def log_request(call: Call, job: Job) -> None:
    """With `log_requests`, a line about what is asked for. Prompts are shown as far as allowed."""
    config = call.services.config
    if not config.log_requests or not logger.isEnabledFor(logging.INFO):
        return
    log_event(
        logger,
        logging.INFO,
        "request_received",
        request_id=call.request_id,
        label=job.label,
        tenant=call.caller.tenant,
        path=call.exchange.path,
        prompts=len(job.prompts),
        prompt=_beginning(job.prompts[0], config.log_prompt_chars),
        sampling=_not_default(job.sampling),
        priority=job.priority,
        deadline_s=job.deadline_s,
    )


def log_access(
    call: Call, route: str, level: int, elapsed_s: float, *, error: str | None, gone: bool
) -> None:
    """One line per request, after its answer."""
    if not logger.isEnabledFor(level):
        return
    figures = call.figures
    first_s = figures.first_output_s
    log_event(
        logger,
        level,
        "client_left" if gone else "request_answered",
        request_id=call.request_id,
        label=call.label,
        tenant=call.caller.tenant,
        method=call.exchange.method,
        path=route,
        status=call.exchange.status,
        error=error,
        prompt_tokens=figures.prompt_tokens,
        completion_tokens=figures.completion_tokens,
        first_output_s=None if first_s is None else round(first_s, 4),
        elapsed_s=round(elapsed_s, 4),
    )


def _beginning(prompt: Prompt, length: int) -> str:
    """The first characters of a text or chat, or the first ids, and how long it is."""
    if isinstance(prompt, str):
        return prompt if len(prompt) <= length else f"{prompt[:length]}... ({len(prompt)} chars)"
    if prompt and isinstance(prompt[0], int):
        more = "" if len(prompt) <= length else f"... ({len(prompt)} ids)"
        return f"{list(prompt[:length])}{more}"
    # The end of a chat says what is asked now; one message may be as long as all are.
    last = dict(prompt[-1]) if prompt and not isinstance(prompt[-1], int) else {}
    text = str(last.get("content") or "")
    more = "" if len(text) <= length else f"... ({len(text)} chars)"
    return f"[{len(prompt)} messages, last of {last.get('role')}] {text[:length]}{more}"


def _not_default(sampling: SamplingParams) -> dict[str, object]:
    """Parameters that say something; long ones by their length."""
    default = SamplingParams()
    out: dict[str, object] = {}
    for field in attrs.fields(SamplingParams):
        value = getattr(sampling, field.name)
        if value == getattr(default, field.name):
            continue
        if field.name == "structured_outputs":
            out[field.name] = True
        elif isinstance(value, (tuple, dict)) and field.name != "stop":
            out[field.name] = f"{len(value)} entries"
        else:
            out[field.name] = value
    return out
