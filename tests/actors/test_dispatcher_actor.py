"""The dispatcher on real channels."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from support.text import RecordingSink
from triolet.actor.channel import Channel
from triolet.actor.faultpoint import FaultPoints
from triolet.dispatcher.actor import OUTPUTS_PER_SLICE, OutputDispatcher
from triolet.dispatcher.output_table import DispatcherReply
from triolet.errors import EngineDead, InternalError
from triolet.messages.dispatcher_to_scheduler import SinkFailed, StopMatched
from triolet.messages.scheduler_to_dispatcher import (
    RequestFinished,
    RequestStarted,
    StepFacts,
    TokensSampled,
)
from triolet.output import Usage
from triolet.request import FinishReason, GenerationRequest, RequestId
from triolet.sampling_params import SamplingParams
from triolet.tokenizer.byte_tokenizer import ByteTokenizer

A, B = RequestId("a"), RequestId("b")


@attrs.define
class Stage:
    """A running dispatcher with the test as its scheduler."""

    dispatcher: OutputDispatcher
    scheduler: Channel[DispatcherReply]
    faults: FaultPoints
    nursery: trio.Nursery

    def open(self, request_id: RequestId = A, **sampling: object) -> RecordingSink:
        """Open a request with a sink of its own."""
        sink = RecordingSink()
        params = SamplingParams(**sampling)  # type: ignore[arg-type]  # any of its fields
        self.dispatcher.open(GenerationRequest(request_id, (1, 2, 3), params, 0.0), sink)
        return sink

    def say(self, *facts: RequestStarted | TokensSampled | RequestFinished) -> None:
        """What the scheduler says in one turn."""
        self.dispatcher.inbox.send_nowait(StepFacts(list(facts)))


@asynccontextmanager
async def running() -> AsyncIterator[Stage]:
    inbox: Channel[StepFacts] = Channel("dispatcher", 8)
    scheduler: Channel[DispatcherReply] = Channel("scheduler", 100)
    faults = FaultPoints()
    dispatcher = OutputDispatcher(inbox, scheduler, ByteTokenizer(), faults)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dispatcher.run)
        yield Stage(dispatcher, scheduler, faults, nursery)
        nursery.cancel_scope.cancel()


def tokens(text: str, request_id: RequestId = A) -> TokensSampled:
    return TokensSampled(request_id, 0, tuple(text.encode()))


def end(position: int, request_id: RequestId = A) -> RequestFinished:
    return RequestFinished(request_id, 0, FinishReason.LENGTH, None, position)


async def test_tokens_become_text_in_the_right_sink() -> None:
    async with running() as stage:
        a, b = stage.open(A), stage.open(B)
        stage.say(RequestStarted(A, 1), tokens("x", A), tokens("y", B))
        await wait_all_tasks_blocked()
        assert (a.text(), b.text()) == ("x", "y")
        stage.say(tokens("z", A), end(2, A))
        await wait_all_tasks_blocked()
        assert (a.text(), a.usage) == ("xz", Usage(3, 2, 1))
        assert b.usage is None


async def test_turns_that_pile_up_are_taken_together() -> None:
    async with running() as stage:
        sink = stage.open()
        for char in "abc":
            stage.say(tokens(char))
        await wait_all_tasks_blocked()
        assert [delta.text for delta in sink.deltas] == ["abc"]


async def test_scheduler_hears_of_stops_and_broken_sinks() -> None:
    async with running() as stage:
        stopped = stage.open(A, stop=["."])
        stage.open(B).raises_in = frozenset({"put"})
        stage.say(tokens("a.b", A), tokens("x", B))
        assert await stage.scheduler.receive_all() == [StopMatched(A, 0, 2), SinkFailed(B)]
        assert stopped.text() == "a"


async def test_other_tasks_run_in_the_middle_of_a_big_turn() -> None:
    """1000 outputs of one step, in slices; a task between them sees only a part done."""
    async with running() as stage:
        sinks = [stage.open(RequestId(str(i))) for i in range(1000)]
        seen: list[int] = []

        async def watch() -> None:
            while not seen or seen[-1] < len(sinks):
                await trio.lowlevel.checkpoint()
                seen.append(sum(bool(sink.deltas) for sink in sinks))

        await wait_all_tasks_blocked()
        stage.say(*(tokens("x", RequestId(str(i))) for i in range(1000)))
        await watch()
        steps = [after - before for before, after in itertools.pairwise([0, *seen])]
        # trio runs tasks that are ready in any order: two slices can come in a row.
        assert max(steps) <= 2 * OUTPUTS_PER_SLICE
        assert len([count for count in seen if 0 < count < 1000]) >= 3


async def test_request_closed_in_the_middle_of_a_turn_gets_nothing() -> None:
    async with running() as stage:
        sinks = [stage.open(RequestId(str(i))) for i in range(OUTPUTS_PER_SLICE + 1)]
        last = RequestId(str(OUTPUTS_PER_SLICE))
        sinks[0].on_put = lambda: stage.dispatcher.close(last)
        stage.say(*(tokens("x", RequestId(str(i))) for i in range(len(sinks))))
        await wait_all_tasks_blocked()
        assert sinks[-2].text() == "x"
        assert sinks[-1].calls == []


async def test_conclude_and_death_are_synchronous() -> None:
    async with running() as stage:
        concluded, failed = stage.open(A), stage.open(B)
        stage.say(tokens("x", A), tokens("y", B))
        await wait_all_tasks_blocked()
        stage.dispatcher.conclude(A, FinishReason.CANCELLED)
        assert concluded.last().finish_reason is FinishReason.CANCELLED
        assert concluded.usage == Usage(3, 1)
        stage.dispatcher.fail_all(EngineDead("gone"))
        assert isinstance(failed.error, EngineDead)
        assert stage.dispatcher.statistics().outputs.requests == 0


async def test_statistics_show_the_inbox_and_what_was_done() -> None:
    async with running() as stage:
        stage.open(A)
        stage.say(tokens("x", A), tokens("y", B))
        assert stage.dispatcher.statistics().inbox.depth == 1
        await wait_all_tasks_blocked()
        statistics = stage.dispatcher.statistics()
        assert statistics.inbox.depth == 0
        assert statistics.outputs.deltas == statistics.outputs.facts_dropped == 1
        assert stage.dispatcher.usage(A) == Usage(3, 1)


async def test_fault_point_is_passed_before_each_turn() -> None:
    def crash() -> None:
        raise InternalError("crash")

    with pytest.RaisesGroup(pytest.RaisesExc(InternalError, match="crash")):
        async with running() as stage:
            sink = stage.open()
            stage.faults.arm("dispatcher.before_apply", crash)
            stage.say(tokens("x"))
            await trio.sleep_forever()
    assert sink.calls == []


async def test_missing_credit_for_a_reply_is_a_bug() -> None:
    inbox: Channel[StepFacts] = Channel("dispatcher", 8)
    scheduler: Channel[DispatcherReply] = Channel("scheduler", 0)
    dispatcher = OutputDispatcher(inbox, scheduler, ByteTokenizer(), FaultPoints())
    params = SamplingParams(stop=("x",))
    dispatcher.open(GenerationRequest(A, (1,), params, 0.0), RecordingSink())
    inbox.send_nowait(StepFacts([tokens("x")]))
    with pytest.raises(InternalError, match="scheduler is full"):
        await dispatcher.run()
