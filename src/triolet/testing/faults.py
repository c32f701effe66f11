"""The vocabulary of faults: what can go wrong, as data. `nemesis.py` makes it happen.

Every fault strikes `times` times, at moments drawn from the seed: in virtual seconds after the
engine has opened (`within_s`), or at the n-th pass of a fault point (`at_pass`).
"""

from __future__ import annotations

from typing import Literal

import attrs

from triolet.actor.faultpoint import POINTS
from triolet.errors import ConfigError

Span = tuple[float, float]
"""Lowest and highest value, drawn evenly."""
IntSpan = tuple[int, int]

CORRUPTIONS = ("token_out_of_range", "wrong_step", "missing_row", "repeated_row", "stranger")
CHANNELS = ("tracker", "scheduler", "runner", "dispatcher")
CLOG_TURNS_MAX = 3
"""Turns of the loop by which a receiver is held up: more than trio itself ever does, and
within what the bounds of the channels allow (see `engine/wiring.py`)."""


@attrs.frozen(kw_only=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        times: How often.
        within_s: When: seconds after the engine has opened.
    """

    times: int = 1
    within_s: Span = (0.0, 0.5)


@attrs.frozen(kw_only=True)
class RunnerCrash(Fault):
    """The worker dies at that moment, whatever it is doing (kill -9)."""


@attrs.frozen(kw_only=True)
class LoadFailure(Fault):
    """Loading fails: with `first`, at the start of the engine; else after a death."""

    first: bool = False


@attrs.frozen(kw_only=True)
class RunnerHang(Fault):
    """The next step never ends."""


@attrs.frozen(kw_only=True)
class SlowStep(Fault):
    """The next step takes longer; longer than `step_timeout_s` is a late result.

    Attributes:
        takes_s: How long.
    """

    takes_s: Span = (0.1, 2.0)


@attrs.frozen(kw_only=True)
class StepError(Fault):
    """The next step raises in the worker, as one does that runs out of memory."""

    message: str = "out of memory"


@attrs.frozen(kw_only=True)
class CorruptResult(Fault):
    """The next result makes no sense.

    Attributes:
        how: One of `CORRUPTIONS`; "any" draws one.
    """

    how: Literal[
        "any", "token_out_of_range", "wrong_step", "missing_row", "repeated_row", "stranger"
    ] = "any"


@attrs.frozen(kw_only=True)
class LostResult(Fault):
    """The next result never arrives, although the step was computed."""


@attrs.frozen(kw_only=True)
class RepeatedResult(Fault):
    """The answer to the step before arrives again, in the place of the next one."""


@attrs.frozen(kw_only=True)
class ClientLeaves(Fault):
    """A client that is there leaves.

    Attributes:
        point: A fault point at which it leaves; None is at a time.
        at_pass: At which pass of the point.
    """

    point: str | None = None
    at_pass: IntSpan = (1, 20)

    def __attrs_post_init__(self) -> None:
        _check_point(self.point)


@attrs.frozen(kw_only=True)
class CancelById(Fault):
    """Somebody cancels a live request by its id."""


@attrs.frozen(kw_only=True)
class ActorCrash(Fault):
    """An actor raises at a fault point: the engine dies, and every waiter is told.

    Attributes:
        point: The fault point.
        at_pass: At which pass.
    """

    point: str
    at_pass: IntSpan = (1, 20)

    def __attrs_post_init__(self) -> None:
        _check_point(self.point)
        if self.point.startswith("engine."):
            raise ConfigError(
                f"{self.point} is passed by the caller's own task: no actor can crash there",
                param="point",
            )


@attrs.frozen(kw_only=True)
class ClockJump(Fault):
    """The clock jumps forward, as after a suspend.

    Attributes:
        by_s: How far.
    """

    by_s: Span = (0.01, 30.0)


@attrs.frozen(kw_only=True)
class Clog(Fault):
    """For a while, the receiver of a channel is held up before it takes what is there.

    Attributes:
        channel: Which one.
        turns: Turns of the loop, at most `CLOG_TURNS_MAX`.
        lasts_s: For how long.
    """

    channel: Literal["tracker", "scheduler", "runner", "dispatcher"]
    turns: int = CLOG_TURNS_MAX
    lasts_s: float = 0.2

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.turns <= CLOG_TURNS_MAX:
            raise ConfigError(
                f"turns must be from 1 to {CLOG_TURNS_MAX}, got {self.turns}: no receiver is "
                "held up longer than that by trio",
                param="turns",
            )


@attrs.frozen(kw_only=True)
class CacheReset(Fault):
    """The operator makes the engine forget its prefix cache."""


@attrs.frozen(kw_only=True)
class Drain(Fault):
    """The engine is drained and then closed, as on SIGTERM.

    Attributes:
        grace_s: How long it waits for what is there.
    """

    grace_s: Span = (0.0, 1.0)


@attrs.frozen(kw_only=True)
class Close(Fault):
    """The block of `open_engine` is left while clients are in it."""


FAULT_CLASSES: dict[str, type[Fault]] = {
    "actor_crash": ActorCrash,
    "cache_reset": CacheReset,
    "cancel_by_id": CancelById,
    "client_leaves": ClientLeaves,
    "clock_jump": ClockJump,
    "clog": Clog,
    "close": Close,
    "corrupt_result": CorruptResult,
    "drain": Drain,
    "load_failure": LoadFailure,
    "lost_result": LostResult,
    "repeated_result": RepeatedResult,
    "runner_crash": RunnerCrash,
    "runner_hang": RunnerHang,
    "slow_step": SlowStep,
    "step_error": StepError,
}
"""Every kind of fault by its name in a scenario file."""

FAULT_NAMES = {fault_class: name for name, fault_class in FAULT_CLASSES.items()}


def _check_point(point: str | None) -> None:
    if point is not None and point not in POINTS:
        raise ConfigError(
            f"there is no fault point {point!r}; the points are {', '.join(sorted(POINTS))}",
            param="point",
        )
