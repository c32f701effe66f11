"""Load: who asks when. A closed loop keeps a number of requests open, an open loop does not wait.

An open loop shows what users of an overloaded server see; a closed one slows down with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import trio

from triolet.cli.bench.records import RequestRecord
from triolet.cli.bench.workload import BenchRequest
from triolet.engine.client import EngineClient
from triolet.errors import Rejected, RequestFailed
from triolet.sampling_params import SamplingParams


class Target(Protocol):
    """What is measured."""

    async def ask(self, request: BenchRequest) -> RequestRecord:
        """Ask, read the answer to its end and say what happened; an error is in the record."""
        ...


async def closed_loop(
    target: Target, requests: Sequence[BenchRequest], concurrency: int
) -> list[RequestRecord]:
    """Keep `concurrency` requests open until all are answered. A checkpoint.

    Returns:
        In the order of the requests.
    """
    records: dict[int, RequestRecord] = {}
    waiting = iter(enumerate(requests))

    async def work() -> None:
        for index, request in waiting:
            records[index] = await target.ask(request)

    async with trio.open_nursery() as nursery:
        for _ in range(min(concurrency, len(requests))):
            nursery.start_soon(work)
    return [records[index] for index in range(len(requests))]


async def open_loop(
    target: Target,
    requests: Sequence[BenchRequest],
    arrival_times_s: Sequence[float],
    concurrency: int | None = None,
) -> list[RequestRecord]:
    """Send each request when it is due, whether or not earlier ones are answered. A checkpoint.

    Args:
        target: What is measured.
        requests: In order of arrival.
        arrival_times_s: When each is due, from now.
        concurrency: At most so many open at once; the others wait, and their wait counts as
            theirs: a request begins when it was due.

    Returns:
        In the order of the requests.
    """
    records: dict[int, RequestRecord] = {}
    places = trio.CapacityLimiter(concurrency or len(requests))

    async def ask(index: int, request: BenchRequest, due_s: float) -> None:
        async with places:
            record = await target.ask(request)
        records[index] = attrs.evolve(record, start_s=due_s)

    start_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for index, (request, offset_s) in enumerate(zip(requests, arrival_times_s, strict=True)):
            await trio.sleep_until(start_s + offset_s)
            nursery.start_soon(ask, index, request, start_s + offset_s)
    return [records[index] for index in range(len(requests))]


@attrs.frozen
class EngineTarget:
    """An engine in this process.

    Attributes:
        engine: Open.
        sampling: Of every request, but for its length.
    """

    engine: EngineClient
    sampling: SamplingParams

    async def ask(self, request: BenchRequest) -> RequestRecord:
        """See `Target.ask`."""
        assert request.token_ids is not None, "the tokenizer of an engine is known"
        sampling = attrs.evolve(self.sampling, max_tokens=request.max_tokens)
        start_s = trio.current_time()
        try:
            async with self.engine.generate(request.token_ids, sampling) as stream:
                times = [trio.current_time() async for delta in stream if delta.token_ids]
                usage = stream.usage
        except (Rejected, RequestFailed) as error:
            return RequestRecord(
                start_s=start_s, end_s=trio.current_time(), error=f"{error.code}: {error.message}"
            )
        return RequestRecord(
            start_s=start_s,
            end_s=trio.current_time(),
            piece_times_s=tuple(times),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            wanted_tokens=request.max_tokens,
        )
