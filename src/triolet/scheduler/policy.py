"""In which order requests are served, and how much each step takes on.

**Order.** A request's key is fixed when it arrives. Under "fcfs" it is the arrival time;
under "priority" it is arrival + priority x ageing_seconds. That is ageing without a clock:
"priority minus time waited / ageing_seconds" orders any two requests the same way at every
moment, because time passes for both. So no waiting request is ever touched to age it, and
none starves: only requests that arrive within (difference of priority) x ageing_seconds
can overtake it.

**Growth.** Admitting all that fits now makes sequences preempt each other later, when their
outputs have grown. So some room is kept for the growth of what runs: a share of what it may
still grow, learned from how far outputs really went (after SGLang's new_token_ratio).
"""

from __future__ import annotations

from triolet.config import SchedulerConfig
from triolet.request import GenerationRequest

RequestKey = tuple[float, int]
"""(aged arrival in seconds, number of the request)."""

SequenceKey = tuple[float, int, int]
"""(aged arrival in seconds, number of the request, number of the sequence in it)."""

GROWTH_TOKENS_MAX = 4096
"""No sequence is expected to grow by more than this (SGLang's
CLIP_MAX_NEW_TOKENS_ESTIMATION): a missing `max_tokens` must not keep the pool empty."""

GROWTH_RATIO_START = 0.5
GROWTH_RATIO_MIN = 0.05
GROWTH_LEARNING_RATE = 0.1
"""Least weight of one more output: about ten outputs make the estimate."""

GROWTH_PREEMPTION_STEP = 0.1
"""A preemption shows that too much was admitted."""


def request_key(request: GenerationRequest, config: SchedulerConfig, number: int) -> RequestKey:
    """The place of a request in the order of service; lower is first.

    Args:
        request: The request.
        config: Policy and ageing.
        number: Breaks ties; increasing with each request.
    """
    aged = request.arrival_time
    if config.scheduling_policy == "priority":
        aged += request.priority * config.ageing_seconds
    return (aged, number)


class GrowthEstimate:
    """How much of what they may grow outputs are expected to grow, as a share in (0, 1]."""

    def __init__(self) -> None:
        self.ratio = GROWTH_RATIO_START
        self._num_learned = 0

    def learn(self, num_output_tokens: int, num_output_tokens_max: int) -> None:
        """An output ended by itself after this many of the tokens it might have had."""
        expected = min(num_output_tokens_max, GROWTH_TOKENS_MAX)
        share = min(1.0, num_output_tokens / max(1, expected))
        self._num_learned += 1
        # An average at first, so that the start is soon forgotten; then a moving one.
        weight = max(GROWTH_LEARNING_RATE, 1 / (self._num_learned + 1))
        self.ratio += weight * (share - self.ratio)
        self.ratio = max(GROWTH_RATIO_MIN, self.ratio)

    def preempted(self) -> None:
        """A sequence was preempted."""
        self.ratio = min(1.0, self.ratio + GROWTH_PREEMPTION_STEP)
