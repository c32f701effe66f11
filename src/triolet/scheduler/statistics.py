"""What the scheduler shows of itself."""

from __future__ import annotations

import attrs

from triolet.request import RequestId


@attrs.frozen
class SchedulerStatistics:
    """A moment of the scheduler, O(running) to take. Counters count since the start.

    Attributes:
        requests_running: Requests with a sequence in the running set.
        requests_waiting: Live requests without one.
        sequences_running: Sequences in the running set.
        sequences_waiting: Sequences in the queue.
        blocks_total: KV blocks there are.
        blocks_used: KV blocks held by sequences.
        blocks_cached: KV blocks nobody holds whose content can still be found.
        blocks_free: KV blocks that hold nothing.
        steps: Steps that ended.
        steps_in_flight: Steps given to the runner that have not ended.
        computed_tokens: Tokens given to the runner to compute.
        recomputed_tokens: Those of them that had been computed before.
        sampled_tokens: Tokens that became part of an output.
        prefix_queries: Tokens looked for in the prefix cache.
        prefix_hits: Tokens found there.
        preemptions: Sequences that lost their blocks to another.
        dropped_results: Sampled tokens that came for a sequence already ended, or from a
            runner already replaced.
        growth_ratio: Share of what they may still grow that outputs are expected to grow.
        suspects: Requests that may have killed the runner.
        runner_losses: Times the runner was lost.
    """

    requests_running: int
    requests_waiting: int
    sequences_running: int
    sequences_waiting: int
    blocks_total: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int
    steps: int
    steps_in_flight: int
    computed_tokens: int
    recomputed_tokens: int
    sampled_tokens: int
    prefix_queries: int
    prefix_hits: int
    preemptions: int
    dropped_results: int
    growth_ratio: float
    suspects: int
    runner_losses: int


@attrs.frozen
class RequestStatistics:
    """One live request.

    Attributes:
        request_id: Its id.
        phase: "waiting", "prefill", "decode" or "preempted".
        arrival_time: Seconds on trio's clock.
        sequences: Its live sequences.
        blocks: References to KV blocks they hold.
        prompt_tokens: Length of the prompt.
        output_tokens: Tokens of all live outputs.
        computed_tokens: Tokens in the KV cache, over all live sequences.
        preemptions: Times one of its sequences was preempted.
        is_suspect: Whether it may have killed the runner.
    """

    request_id: RequestId
    phase: str
    arrival_time: float
    sequences: int
    blocks: int
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int
    preemptions: int
    is_suspect: bool
