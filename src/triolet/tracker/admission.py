"""How much work may be inside: a credit is reserved before anything is spent on a request.

`reserve` is synchronous and counts at once, so that a burst is refused before it costs any
tokenizing. What a reservation holds is given back exactly once, by `release`.
"""

from __future__ import annotations

import math
from collections import deque

import attrs

from triolet.errors import InternalError, QueueFull

RETRY_AFTER_MIN_S = 1.0
RETRY_AFTER_MAX_S = 60.0
RATE_WINDOW = 64
"""Releases over which the rate of completions is estimated."""


@attrs.frozen
class AdmissionStatistics:
    """What is admitted now, and what was refused so far."""

    live_requests: int
    queued_tokens: int
    refused_requests: int
    refused_tokens: int


class Reservation:
    """The credit of one request: one place, and the prompt tokens it makes wait."""

    def __init__(self, admission: Admission, tokens: int) -> None:
        self._admission = admission
        self._tokens = tokens
        self._queued = True
        self._released = False

    @property
    def tokens(self) -> int:
        """Prompt tokens it counts for."""
        return self._tokens

    def commit(self, tokens: int) -> None:
        """Replace the estimate by the real number of prompt tokens; never refuses."""
        if self._queued and not self._released:
            self._admission.adjust_tokens(tokens - self._tokens)
        self._tokens = tokens

    def start(self) -> None:
        """The request got its first place in a step: its tokens wait no longer."""
        if self._queued and not self._released:
            self._admission.adjust_tokens(-self._tokens)
        self._queued = False

    def release(self, now: float) -> None:
        """Give everything back. Idempotent."""
        if self._released:
            return
        self.start()
        self._released = True
        self._admission.give_back(now)


class Admission:
    """Counts requests and waiting prompt tokens against their limits.

    Args:
        max_live_requests: Requests between reserve and release.
        max_queued_tokens: Prompt tokens of requests that have not started. One request alone
            is always let in, however long it is: the model's context bounds it.
    """

    def __init__(self, max_live_requests: int, max_queued_tokens: int) -> None:
        self._max_live_requests = max_live_requests
        self._max_queued_tokens = max_queued_tokens
        self._live_requests = 0
        self._queued_tokens = 0
        self._refused_requests = 0
        self._refused_tokens = 0
        self._release_times: deque[float] = deque(maxlen=RATE_WINDOW)

    def reserve(self, tokens: int, now: float) -> Reservation:
        """Take a credit for a request of about this many prompt tokens.

        Raises:
            QueueFull: A limit is reached; the message names it, `retry_after_s` is set.
        """
        if self._live_requests >= self._max_live_requests:
            self._refused_requests += 1
            raise QueueFull(
                f"the engine holds {self._live_requests} requests, its limit "
                "(max_live_requests); try again later",
                retry_after_s=self._retry_after(now),
            )
        if self._queued_tokens and self._queued_tokens + tokens > self._max_queued_tokens:
            self._refused_tokens += 1
            raise QueueFull(
                f"{self._queued_tokens} prompt tokens wait and {tokens} more would pass the "
                f"limit of {self._max_queued_tokens} (max_queued_tokens); try again later",
                retry_after_s=self._retry_after(now),
            )
        self._live_requests += 1
        self._queued_tokens += tokens
        return Reservation(self, tokens)

    def adjust_tokens(self, change: int) -> None:
        """Change the number of waiting tokens; for reservations only."""
        self._queued_tokens += change
        if self._queued_tokens < 0:
            raise InternalError("more waiting tokens were given back than were reserved")

    def give_back(self, now: float) -> None:
        """Return one place; for reservations only."""
        self._live_requests -= 1
        if self._live_requests < 0:
            raise InternalError("more requests were given back than were reserved")
        self._release_times.append(now)

    def statistics(self) -> AdmissionStatistics:
        """What is admitted now, and what was refused so far."""
        return AdmissionStatistics(
            self._live_requests,
            self._queued_tokens,
            self._refused_requests,
            self._refused_tokens,
        )

    def _retry_after(self, now: float) -> float:
        """Time in which an eighth of what is inside will have left, at the recent rate."""
        times = self._release_times
        if len(times) < 2 or now <= times[0]:
            return RETRY_AFTER_MIN_S
        per_second = len(times) / (now - times[0])
        wait_s = math.ceil(self._live_requests / 8 / per_second)
        return min(RETRY_AFTER_MAX_S, max(RETRY_AFTER_MIN_S, wait_s))
