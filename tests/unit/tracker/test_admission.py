"""What is reserved is given back exactly once, and the limits hold at every moment."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from triolet.errors import QueueFull
from triolet.tracker.admission import Admission, Reservation

MAX_REQUESTS, MAX_TOKENS = 4, 100


def test_a_burst_is_refused_at_the_limit_with_a_time_to_come_back() -> None:
    admission = Admission(max_live_requests=2, max_queued_tokens=1000)
    admission.reserve(1, now=0.0)
    admission.reserve(1, now=0.0)
    with pytest.raises(QueueFull, match="max_live_requests") as caught:
        admission.reserve(1, now=0.0)
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s >= 1.0
    assert admission.statistics().refused_requests == 1


def test_waiting_tokens_are_limited_and_one_long_prompt_alone_is_let_in() -> None:
    admission = Admission(max_live_requests=10, max_queued_tokens=100)
    first = admission.reserve(500, now=0.0)
    with pytest.raises(QueueFull, match="max_queued_tokens"):
        admission.reserve(1, now=0.0)
    first.start()
    admission.reserve(100, now=0.0)
    assert admission.statistics().queued_tokens == 100


def test_a_started_request_still_counts_as_live_until_it_is_released() -> None:
    admission = Admission(max_live_requests=1, max_queued_tokens=100)
    reservation = admission.reserve(10, now=0.0)
    reservation.start()
    with pytest.raises(QueueFull):
        admission.reserve(1, now=0.0)
    reservation.release(now=1.0)
    admission.reserve(1, now=1.0)


def test_the_time_to_come_back_follows_the_rate_of_completions() -> None:
    slow = Admission(max_live_requests=64, max_queued_tokens=10**9)
    fast = Admission(max_live_requests=64, max_queued_tokens=10**9)
    for admission, seconds in ((slow, 10.0), (fast, 0.1)):
        for i in range(64):
            admission.reserve(1, now=i * seconds).release(now=i * seconds)
        for _ in range(64):
            admission.reserve(1, now=64 * seconds)
    times = []
    for admission, seconds in ((slow, 10.0), (fast, 0.1)):
        with pytest.raises(QueueFull) as caught:
            admission.reserve(1, now=64 * seconds)
        times.append(caught.value.retry_after_s)
    assert times == [60.0, 1.0]


class AdmissionMachine(RuleBasedStateMachine):
    """A model that counts by itself, against the real thing."""

    reservations = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.admission = Admission(MAX_REQUESTS, MAX_TOKENS)
        self.live: dict[Reservation, int] = {}
        self.now = 0.0

    @rule(target=reservations, tokens=st.integers(0, 150))
    def reserve(self, tokens: int) -> object:
        queued = sum(self.live.values())
        allowed = len(self.live) < MAX_REQUESTS and (not queued or queued + tokens <= MAX_TOKENS)
        try:
            reservation = self.admission.reserve(tokens, self.now)
        except QueueFull:
            assert not allowed
            return multiple()
        assert allowed
        self.live[reservation] = tokens
        return reservation

    @rule(reservation=reservations, tokens=st.integers(0, 150))
    def commit(self, reservation: Reservation, tokens: int) -> None:
        reservation.commit(tokens)
        if self.live.get(reservation) or (reservation in self.live and reservation._queued):
            self.live[reservation] = tokens

    @rule(reservation=reservations)
    def start(self, reservation: Reservation) -> None:
        reservation.start()
        if reservation in self.live:
            self.live[reservation] = 0

    @rule(reservation=consumes(reservations), twice=st.booleans())
    def release(self, reservation: Reservation, twice: bool) -> None:
        self.now += 1.0
        for _ in range(1 + twice):
            reservation.release(self.now)
        self.live.pop(reservation, None)

    @invariant()
    def counts_agree(self) -> None:
        statistics = self.admission.statistics()
        assert statistics.live_requests == len(self.live)
        assert statistics.queued_tokens == sum(self.live.values())


TestAdmission = AdmissionMachine.TestCase
