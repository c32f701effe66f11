"""The three measurements: offline, one engine in process, a server over HTTP.

Each gives one row of figures per repetition.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import trio

from triolet.cli.bench.http_client import HttpClient, HttpTarget, first_model_name
from triolet.cli.bench.load import EngineTarget, Target, closed_loop, open_loop
from triolet.cli.bench.machine import CpuMeter
from triolet.cli.bench.records import RequestRecord, figures_of_load, figures_of_totals
from triolet.cli.bench.server_load import CLOSED_LOOP_CONCURRENCY, ServerLoad
from triolet.cli.bench.workload import (
    BenchRequest,
    Lexicon,
    WorkloadConfig,
    arrival_times,
    draw_requests,
    lexicon_of,
    lexicon_without_tokenizer,
)
from triolet.cli.console import error_console
from triolet.cli.progress import StartProgress
from triolet.config import EngineConfig, ModelConfig
from triolet.errors import ConfigError
from triolet.sampling_params import SamplingParams

if TYPE_CHECKING:
    from triolet.engine.portal import LLM

WARM_UP = -1
"""Number of the repetition that is not measured."""
WARM_UP_TOKENS = 8
"""Its output: enough to touch every code path."""

Figures = dict[str, Any]
Drive = Callable[[Sequence[BenchRequest], int], Awaitable[list[RequestRecord]]]
"""Sends the requests of a repetition."""


def measure_offline(config: EngineConfig, workload: WorkloadConfig) -> list[Figures]:
    """Give all prompts of a repetition to `LLM.generate` at once."""
    from triolet.engine.portal import LLM

    rows: list[Figures] = []
    with LLM(config=config) as llm:
        lexicon = lexicon_of(llm.tokenizer)
        _generate(llm, workload, _warm_up(workload, lexicon, 1))
        for repetition in range(workload.repeat):
            requests = draw_requests(workload, lexicon, repetition)
            meter = CpuMeter()
            start_s = time.perf_counter()
            prompt_tokens, completion_tokens = _generate(llm, workload, requests)
            figures = figures_of_totals(
                wall_s=time.perf_counter() - start_s,
                num_requests=len(requests),
                prompt_tokens=prompt_tokens,
                completion_tokens=completion_tokens,
                cpu=meter.read(),
            )
            wanted = sum(request.max_tokens for request in requests)
            rows.append({**figures, "missing_tokens": wanted - completion_tokens})
    return rows


def _generate(
    llm: LLM, workload: WorkloadConfig, requests: Sequence[BenchRequest]
) -> tuple[int, int]:
    """Run requests offline; returns their tokens in and out."""
    outputs = llm.generate(
        [_token_ids(request) for request in requests],
        [_sampling(workload, request.max_tokens) for request in requests],
        progress=False,
    )
    return (
        sum(output.usage.prompt_tokens for output in outputs),
        sum(output.usage.completion_tokens for output in outputs),
    )


async def measure_engine(config: EngineConfig, workload: WorkloadConfig) -> list[Figures]:
    """Ask an engine in this process, one request at a time. A checkpoint."""
    from triolet.engine.open_engine import open_engine

    with StartProgress(error_console()) as progress:
        async with open_engine(config=config, progress=progress) as engine:
            progress.stop()
            lexicon = lexicon_of(engine.tokenizer)
            target = EngineTarget(engine, _sampling(workload, workload.output_len))

            async def drive(
                requests: Sequence[BenchRequest], repetition: int
            ) -> list[RequestRecord]:
                return await closed_loop(target, requests, 1)

            return await _repeat(workload, lexicon, target, drive, CpuMeter, warm_up=1)


async def measure_server(
    load: ServerLoad, workload: WorkloadConfig
) -> tuple[list[Figures], Figures]:
    """Ask a server. A checkpoint.

    Returns:
        The rows, and what was asked: model, loop and rate.
    """
    lexicon = await trio.to_thread.run_sync(_lexicon_for, load)
    client = HttpClient(load.url, load.key)
    model = load.served_model or await first_model_name(client)
    target = HttpTarget(
        client=client,
        model=model,
        endpoint=load.endpoint,
        as_token_ids=load.token_ids,
        fields=_request_fields(load, workload),
        timeout_s=load.timeout_s,
    )

    async def drive(requests: Sequence[BenchRequest], repetition: int) -> list[RequestRecord]:
        if load.rate is None:
            return await closed_loop(target, requests, load.concurrency or CLOSED_LOOP_CONCURRENCY)
        arrivals = arrival_times(workload, load.rate, repetition)
        return await open_loop(target, requests, arrivals, load.concurrency)

    def meter() -> CpuMeter:
        return CpuMeter(load.server_pid, is_client=True)

    try:
        rows = await _repeat(workload, lexicon, target, drive, meter, warm_up=load.warmup)
    finally:
        await client.aclose()
    asked: Figures = {"model": model, "endpoint": load.endpoint, "rate": load.rate}
    if load.rate is None:
        asked["concurrency"] = load.concurrency or CLOSED_LOOP_CONCURRENCY
    return rows, asked


async def _repeat(
    workload: WorkloadConfig,
    lexicon: Lexicon,
    target: Target,
    drive: Drive,
    meter: Callable[[], CpuMeter],
    *,
    warm_up: int,
) -> list[Figures]:
    """Warm up, then measure every repetition.

    Raises:
        ConfigError: The warm-up fails: then everything would.
    """
    requests = _warm_up(workload, lexicon, warm_up)
    for record in await closed_loop(target, requests, max(1, len(requests))):
        if record.error is not None:
            raise ConfigError(f"the first request failed: {record.error}")
    rows: list[Figures] = []
    for repetition in range(workload.repeat):
        requests = draw_requests(workload, lexicon, repetition)
        cpu = meter()
        records = await drive(requests, repetition)
        figures = figures_of_load(records, cpu.read())
        errors = {record.error for record in records if record.error is not None}
        rows.append({**figures, "errors": sorted(errors)[:3]} if errors else figures)
    return rows


def _sampling(workload: WorkloadConfig, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=workload.temperature,
        top_p=workload.top_p,
        max_tokens=max_tokens,
        ignore_eos=workload.ignore_eos,
    )


def _request_fields(load: ServerLoad, workload: WorkloadConfig) -> Figures:
    """The fields of every request body; `ignore_eos` is known to vLLM and llama.cpp too."""
    fields: Figures = {"temperature": workload.temperature}
    if workload.top_p < 1:
        fields["top_p"] = workload.top_p
    if workload.ignore_eos:
        fields["ignore_eos"] = True
    return {**fields, **load.extra_fields()}


def _warm_up(workload: WorkloadConfig, lexicon: Lexicon, count: int) -> list[BenchRequest]:
    """Requests like the measured ones, but others, and short."""
    config = attrs.evolve(workload, num_prompts=max(1, count))
    requests = draw_requests(config, lexicon, WARM_UP)[:count]
    return [attrs.evolve(r, max_tokens=min(WARM_UP_TOKENS, r.max_tokens)) for r in requests]


def _token_ids(request: BenchRequest) -> tuple[int, ...]:
    assert request.token_ids is not None, "the tokenizer of an engine is known"
    return request.token_ids


def _lexicon_for(load: ServerLoad) -> Lexicon:
    """Of the tokenizer that was named, or of none."""
    if load.tokenizer is None:
        return lexicon_without_tokenizer()
    from triolet.model_source.resolve import resolve
    from triolet.tokenizer.hf_tokenizer import load_tokenizer

    def say_nothing(text: str) -> None: ...

    return lexicon_of(load_tokenizer(resolve(ModelConfig(model=load.tokenizer), say_nothing)))
