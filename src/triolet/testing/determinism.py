"""Makes a trio run a pure function of a seed. The only file that touches private names of trio.

trio shuffles the tasks that can run. It has a switch to shuffle a sorted batch from a seeded
generator; what is left is the order in which sets of tasks and of cancel scopes are walked,
which is the order of memory addresses. Both get hashes that count instead.

`check_private_names` tells, in one sentence, when a trio has come that lacks one of them.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import attrs
import trio
import trio._core._run as trio_run

from triolet.errors import InternalError

_MODULE_NAMES = ("_ALLOW_DETERMINISTIC_SCHEDULING", "_r", "CancelStatus")
_TASK_NAMES = ("_counter", "_next_send_fn", "_next_send")


def check_private_names() -> None:
    """Check that this trio still has what the harness relies on.

    Raises:
        InternalError: It has not; the message names what is missing.
    """
    task_names = {field.name for field in attrs.fields(trio.lowlevel.Task)}
    missing = [name for name in _MODULE_NAMES if not hasattr(trio_run, name)]
    missing += [f"Task.{name}" for name in _TASK_NAMES if name not in task_names]
    if missing:
        raise InternalError(
            f"trio {trio.__version__} has no {', '.join(missing)}: triolet.testing cannot make "
            "its schedule deterministic; use a trio that triolet declares"
        )


class _Numbers:
    """Numbers objects in the order in which they are first asked about.

    An object is kept as long as its number, because an address is used again.
    """

    def __init__(self) -> None:
        self._numbered: dict[int, tuple[int, object]] = {}

    def of(self, item: object) -> int:
        entry = self._numbered.get(id(item))
        if entry is None:
            entry = self._numbered[id(item)] = (len(self._numbered), item)
        return entry[0]


@contextmanager
def deterministic_schedule(seed: int) -> Generator[None]:
    """Make trio's schedule depend on nothing but `seed`, for one run inside the block.

    Not reentrant, and not for two threads at a time: it changes trio as a whole.

    Raises:
        InternalError: This trio lacks a private name that is needed.
    """
    check_private_names()
    module: Any = trio_run
    task_class: Any = trio.lowlevel.Task
    status_class: Any = module.CancelStatus
    numbers = _Numbers()
    before = (
        module._ALLOW_DETERMINISTIC_SCHEDULING,
        module._r,
        task_class.__hash__,
        status_class.__hash__,
    )
    module._ALLOW_DETERMINISTIC_SCHEDULING = True
    module._r = random.Random(seed)
    task_class.__hash__ = lambda task: numbers.of(task)
    status_class.__hash__ = lambda status: numbers.of(status)
    try:
        yield
    finally:
        (
            module._ALLOW_DETERMINISTIC_SCHEDULING,
            module._r,
            task_class.__hash__,
            status_class.__hash__,
        ) = before


def throw_at_next_step(task: trio.lowlevel.Task, error: Exception) -> None:
    """Make a task that is about to run raise `error` where it waits.

    For a `before_task_step` of an instrument. What the task would have received is lost with
    it, as it is when a task dies.
    """
    about_to_run: Any = task
    about_to_run._next_send_fn = task.coro.throw
    about_to_run._next_send = error
