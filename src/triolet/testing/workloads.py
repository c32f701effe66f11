"""From a workload and a seed to clients: who comes when, asks for what, and behaves how.

Also the oracle: what each output must be, computed from the plan alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs

from triolet.request import FinishReason, Timeouts
from triolet.sampling_params import OutputKind, SamplingParams
from triolet.testing.fake_runner import (
    FIRST_TOKEN_ID,
    LAST_TOKEN_ID,
    expected_tokens,
    next_hash,
)
from triolet.testing.faults import IntSpan, Span
from triolet.testing.scenario import Scenario, Workload
from triolet.testing.solo import run_alone
from triolet.tokenizer.byte_tokenizer import NUM_BYTES, ByteTokenizer

POISON_TOKEN = 1
"""A prompt that begins with it kills the simulated runner."""
ROW_ERROR_TOKEN = 2
"""A prompt that begins with it fails alone in the simulated runner."""
STOP_CHARS = 2
"""Length of every stop string: two of them then never end at the same place."""
EOS_TOKEN_ID = ByteTokenizer().eos_token_ids[0]


@attrs.frozen(kw_only=True)
class ClientPlan:
    """One client: its request, and how it behaves.

    Attributes:
        number: Its name.
        arrives_s: When, after the engine has opened.
        via: "library" or "http".
        streams: Whether an HTTP client streams its answer.
        prompt: Token ids.
        is_text: Whether the prompt is sent as text.
        sampling: Of the request; the seed is set.
        prefix: Tokens of the output it brings.
        timeouts: Of the request.
        priority: Of the request.
        cache_salt: Of the request.
        leaves_after_s: When it leaves, after its arrival.
        breaks_after: Pieces after which it leaves.
        read_delay_s: Pause between two pieces.
        ignores_s: How long it holds the stream open without reading.
        has_sink: Whether it brings a sink of its own.
        sink_breaks_at: Piece at which that sink raises.
    """

    number: int
    arrives_s: float
    via: str
    streams: bool
    prompt: tuple[int, ...]
    is_text: bool
    sampling: SamplingParams
    prefix: tuple[int, ...] = ()
    timeouts: Timeouts = attrs.field(factory=Timeouts)
    priority: int = 0
    cache_salt: str | None = None
    leaves_after_s: float | None = None
    breaks_after: int | None = None
    read_delay_s: float = 0.0
    ignores_s: float | None = None
    has_sink: bool = False
    sink_breaks_at: int | None = None

    @property
    def is_poison(self) -> bool:
        """Whether its computation kills the runner."""
        return self.prompt[0] == POISON_TOKEN

    @property
    def has_row_error(self) -> bool:
        """Whether its computation fails alone."""
        return self.prompt[0] == ROW_ERROR_TOKEN


@attrs.frozen
class ExpectedOutput:
    """What one output must be if nothing cuts it short.

    Attributes:
        token_ids: All of its tokens that are delivered: without a prefix it brings.
        text: Their text.
        finish_reason: How it ends.
        stop_reason: The stop string that ends it.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    stop_reason: str | None


def draw_plans(scenario: Scenario, seed: int) -> list[ClientPlan]:
    """The clients of a run, in the order of their numbers."""
    rng = random.Random(f"{seed} workload")
    plans: list[ClientPlan] = []
    for workload in scenario.workloads:
        shared = _draw_tokens(rng, workload.shared_prefix_tokens)
        for _ in range(workload.clients):
            plans.append(_draw_plan(rng, scenario, workload, shared, len(plans)))
    return plans


def expected_output(
    plan: ClientPlan, index: int, max_model_len: int, eos_one_in: int
) -> ExpectedOutput:
    """What output number `index` of a client must be, from its plan alone."""
    if plan.sampling.beam_width is not None:
        return _expected_beam(plan, index, max_model_len, eos_one_in)
    prefix = plan.prefix if index == 0 else ()
    whole = _generate(plan.prompt, plan.sampling, index, max_model_len, eos_one_in)
    end, stop = _find_stop(whole, plan.sampling.stop)
    token_ids = whole[:end]
    text = text_of(token_ids)
    if stop is not None:
        # A stop string may begin in a prefix, whose text is out of reach.
        text = text[: max(len(text) - len(stop), len(prefix))]
    is_eos = stop is None and bool(token_ids) and token_ids[-1] == EOS_TOKEN_ID
    return ExpectedOutput(
        tuple(token_ids[len(prefix) :]),
        text[len(prefix) :],
        FinishReason.STOP if stop is not None or is_eos else FinishReason.LENGTH,
        stop,
    )


def _expected_beam(
    plan: ClientPlan, index: int, max_model_len: int, eos_one_in: int
) -> ExpectedOutput:
    outputs = run_alone(
        plan.prompt, plan.sampling, max_model_len=max_model_len, eos_one_in=eos_one_in
    )
    output = outputs[index]
    assert output.finish_reason is not None
    return ExpectedOutput(
        tuple(output.token_ids), text_of(output.token_ids), output.finish_reason, None
    )


def _generate(
    prompt: Sequence[int],
    sampling: SamplingParams,
    index: int,
    max_model_len: int,
    eos_one_in: int,
) -> list[int]:
    assert sampling.max_tokens is not None
    assert sampling.seed is not None
    return expected_tokens(
        prompt,
        max(0, min(sampling.max_tokens, max_model_len - len(prompt))),
        key=0 if sampling.is_greedy else next_hash(sampling.seed, index),
        eos_token_id=EOS_TOKEN_ID,
        eos_one_in=eos_one_in,
    )


def _find_stop(token_ids: Sequence[int], stops: Sequence[str]) -> tuple[int, str | None]:
    """Where the first stop string ends, and which it is; the whole length if there is none."""
    text = text_of(token_ids)
    for end in range(STOP_CHARS, len(text) + 1):
        if text[end - STOP_CHARS : end] in stops:
            return end, text[end - STOP_CHARS : end]
    return len(token_ids), None


def text_of(token_ids: Sequence[int]) -> str:
    """Their text: a token is a byte, and but for beams a character; special ones are none."""
    return bytes(t for t in token_ids if t < NUM_BYTES).decode(errors="replace")


def _draw_plan(
    rng: random.Random,
    scenario: Scenario,
    workload: Workload,
    shared: list[int],
    number: int,
) -> ClientPlan:
    def chance(share: float) -> bool:
        return share > 0 and rng.random() < share

    prompt = shared + _draw_tokens(rng, _draw_int(rng, workload.prompt_tokens))
    if chance(workload.poison):
        prompt[0] = POISON_TOKEN
    elif chance(workload.row_errors):
        prompt[0] = ROW_ERROR_TOKEN
    n = _draw_int(rng, workload.num_outputs)
    sampling = SamplingParams(
        n=n,
        keep=1 if n > 1 and chance(workload.keep_one) else None,
        temperature=1.0 if chance(workload.sampled) else 0.0,
        seed=rng.randrange(1000),
        max_tokens=_draw_int(rng, workload.max_tokens),
        logprobs=rng.randrange(3) if chance(workload.logprobs) else None,
        output_kind=OutputKind.CUMULATIVE if chance(workload.cumulative) else OutputKind.DELTA,
    )
    if chance(workload.prompt_logprobs):
        sampling = attrs.evolve(sampling, prompt_logprobs=rng.randrange(3))
    if chance(workload.beams):
        width = n + rng.randrange(3)
        sampling = attrs.evolve(sampling, beam_width=width, keep=None, temperature=0.0)
    elif chance(workload.stops):
        sampling = attrs.evolve(sampling, stop=_draw_stops(rng, scenario, prompt, sampling))
    broken = chance(workload.broken_sinks)
    has_sink = broken or chance(workload.sinks)
    plan = ClientPlan(
        number=number,
        arrives_s=workload.starts_s + rng.random() * workload.over_s,
        via=workload.via,
        streams=workload.via == "http" and chance(workload.streams),
        prompt=tuple(prompt),
        is_text=chance(workload.text_prompts),
        sampling=sampling,
        timeouts=_draw_timeouts(rng, workload) if chance(workload.deadlines) else Timeouts(),
        priority=_draw_int(rng, workload.priorities),
        cache_salt=f"salt-{rng.randrange(workload.salts)}" if workload.salts else None,
        leaves_after_s=_draw(rng, workload.leaves_after_s) if chance(workload.leaves) else None,
        breaks_after=rng.randint(1, 6) if chance(workload.breaks) else None,
        read_delay_s=_draw(rng, workload.read_delay_s) if chance(workload.slow) else 0.0,
        ignores_s=_draw(rng, workload.ignore_s) if chance(workload.ignores) else None,
        has_sink=has_sink,
        sink_breaks_at=rng.randrange(6) if broken else None,
    )
    if n == 1 and sampling.beam_width is None and chance(workload.resumes):
        return attrs.evolve(plan, prefix=_draw_prefix(rng, scenario, plan))
    return plan


def _draw_prefix(rng: random.Random, scenario: Scenario, plan: ClientPlan) -> tuple[int, ...]:
    """Some of the first tokens of its output, or all of them unless a stop string ends it."""
    context = scenario.model.context_len
    whole = _generate(plan.prompt, plan.sampling, 0, context, scenario.model.eos_one_in)
    end, stop = _find_stop(whole, plan.sampling.stop)
    return tuple(whole[: rng.randint(0, end - (stop is not None))])


def _draw_timeouts(rng: random.Random, workload: Workload) -> Timeouts:
    seconds = _draw(rng, workload.deadline_s)
    if workload.via == "http":  # whole milliseconds of the whole request, on the wire
        return Timeouts(total=max(1, round(seconds * 1000)) / 1000)
    return rng.choice(
        [Timeouts(total=seconds), Timeouts(queue=seconds), Timeouts(first_token=seconds)]
    )


def _draw_tokens(rng: random.Random, number: int) -> list[int]:
    return [rng.randrange(FIRST_TOKEN_ID, LAST_TOKEN_ID) for _ in range(number)]


def _draw_stops(
    rng: random.Random, scenario: Scenario, prompt: Sequence[int], sampling: SamplingParams
) -> tuple[str, ...]:
    """One that its first output contains, if that is long enough, and one of any text."""
    context = scenario.model.context_len
    whole = text_of(_generate(prompt, sampling, 0, context, scenario.model.eos_one_in))
    stops = [text_of(_draw_tokens(rng, STOP_CHARS))]
    if len(whole) >= STOP_CHARS:
        start = rng.randrange(len(whole) - STOP_CHARS + 1)
        stops.append(whole[start : start + STOP_CHARS])
    return tuple(stops)


def _draw(rng: random.Random, span: Span) -> float:
    return rng.uniform(*span)


def _draw_int(rng: random.Random, span: IntSpan) -> int:
    return rng.randint(*span)
