"""No grammar reaches the engine that was not proved acceptable, outside of it, in time.

The proof runs in a process that is killed at its deadline, or when nobody waits for it any
more. What was proved once is remembered; a time-out is not, it may have been the machine's
fault.
"""

from __future__ import annotations

import logging
import subprocess
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import trio

from triolet.grammar import check
from triolet.sampling_params import StructuredOutputs

log = logging.getLogger(__name__)

PROVED_MAX = 1024
"""Grammars remembered as good; a set of tools or schemas is rarely larger."""

CHECKS_AT_A_TIME = 2
"""Processes at work at a time; more requests wait. Each may take a core."""

Answer = Callable[[bytes], Awaitable[bytes]]
"""Answers the question of `grammar.check`; empty if its process died."""


async def answer_in_process(question: bytes) -> bytes:
    """Ask a process of its own. Cancelled, the process is killed. A checkpoint."""
    completed = await trio.run_process(
        list(check.COMMAND),
        stdin=question,
        capture_stdout=True,
        stderr=subprocess.DEVNULL,
        check=False,
        start_new_session=True,
        deliver_cancel=_kill,
    )
    return completed.stdout


async def _kill(process: trio.Process) -> None:
    """At once: a stopped or busy process does not listen to anything milder."""
    process.kill()


async def answer_inline(question: bytes) -> bytes:
    """Answer in this thread, for simulations. A checkpoint."""
    await trio.lowlevel.checkpoint()
    return check.answer(question)


class GrammarGate:
    """Proves grammars before their requests are admitted.

    Args:
        answer: Where the proof happens.
        timeout_s: How long one may take.
    """

    def __init__(self, answer: Answer, timeout_s: float) -> None:
        self._answer = answer
        self._timeout_s = timeout_s
        self._places = trio.CapacityLimiter(CHECKS_AT_A_TIME)
        self._proved: OrderedDict[StructuredOutputs, None] = OrderedDict()

    async def prove(self, structured: StructuredOutputs) -> None:
        """Return if the grammar is acceptable. A checkpoint unless it is known to be.

        Raises:
            InvalidRequest: It is not; the message names what is wrong, or the time limit.
        """
        if structured in self._proved:
            self._proved.move_to_end(structured)
            return
        question = check.encode_question(structured)
        reply = b""
        async with self._places:
            with trio.move_on_after(self._timeout_s):
                reply = await self._answer(question)
        if not reply:
            raise check.no_answer(structured, self._timeout_s)
        for warning in check.decode_answer(reply):
            log.warning("a grammar was relaxed: %s", warning)
        self._proved[structured] = None
        if len(self._proved) > PROVED_MAX:
            self._proved.popitem(last=False)
