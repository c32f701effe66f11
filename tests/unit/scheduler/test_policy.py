from __future__ import annotations

from hypothesis import given, strategies as st

from triolet.config import SchedulerConfig
from triolet.request import GenerationRequest, RequestId
from triolet.sampling_params import SamplingParams
from triolet.scheduler.policy import GROWTH_RATIO_MIN, GrowthEstimate, request_key


def request(arrival: float, priority: int = 0) -> GenerationRequest:
    return GenerationRequest(RequestId("r"), (1,), SamplingParams(seed=1), arrival, priority)


def test_fcfs_is_the_order_of_arrival() -> None:
    config = SchedulerConfig(scheduling_policy="fcfs")
    assert request_key(request(1.0, 5), config, 1) < request_key(request(2.0, -5), config, 2)
    assert request_key(request(1.0), config, 1) < request_key(request(1.0), config, 2)


@given(
    arrivals=st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)),
    priorities=st.tuples(st.integers(-50, 50), st.integers(-50, 50)),
    now=st.floats(1e6, 2e6),
)
def test_the_key_orders_as_aged_priorities_do_at_any_time(
    arrivals: tuple[float, float], priorities: tuple[int, int], now: float
) -> None:
    config = SchedulerConfig(scheduling_policy="priority", ageing_seconds=10.0)
    aged = [p - (now - a) / 10.0 for a, p in zip(arrivals, priorities, strict=True)]
    if abs(aged[0] - aged[1]) > 1e-6:
        keys = [
            request_key(request(a, p), config, n)
            for n, (a, p) in enumerate(zip(arrivals, priorities, strict=True))
        ]
        assert (keys[0] < keys[1]) == (aged[0] < aged[1])


def test_growth_is_learned_from_outputs_and_preemptions() -> None:
    estimate = GrowthEstimate()
    for _ in range(100):
        estimate.learn(10, 1000)
    assert estimate.ratio == GROWTH_RATIO_MIN
    for _ in range(100):
        estimate.learn(100, 100)
    assert estimate.ratio > 0.99
    estimate.preempted()
    assert estimate.ratio == 1.0
