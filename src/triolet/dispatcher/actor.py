"""The OutputDispatcher actor: takes what the scheduler says and puts outputs into sinks.

It never waits for a consumer. A turn is everything in the inbox; a big one is delivered in
slices with a checkpoint between them, so that other tasks run in the middle of it.
"""

from __future__ import annotations

import attrs
import trio

from triolet.actor.channel import Channel, ChannelStatistics, Outlet
from triolet.actor.faultpoint import FaultPoints
from triolet.dispatcher.output_table import DispatcherReply, OutputStatistics, OutputTable
from triolet.errors import TrioletError
from triolet.messages.scheduler_to_dispatcher import StepFacts
from triolet.output import Sink, Usage
from triolet.request import FinishReason, GenerationRequest, RequestId
from triolet.tokenizer.tokenizer import Tokenizer

OUTPUTS_PER_SLICE = 128
"""Outputs between two checkpoints: about a millisecond (vLLM slices at the same number)."""


@attrs.frozen
class DispatcherStatistics:
    """A moment in the life of the dispatcher."""

    inbox: ChannelStatistics
    outputs: OutputStatistics


class OutputDispatcher:
    """Turns tokens into text and routes it to the right sink.

    `open`, `close`, `conclude`, `fail`, `fail_all` and `usage` are synchronous and may be called from
    any task of the run at any time.

    Args:
        inbox: What the scheduler says.
        scheduler: The scheduler's inbox; the credit is an output of a live request.
        tokenizer: Of the model served.
        faults: Fault points.
    """

    def __init__(
        self,
        inbox: Channel[StepFacts],
        scheduler: Outlet[DispatcherReply],
        tokenizer: Tokenizer,
        faults: FaultPoints,
    ) -> None:
        self.inbox = inbox
        self._scheduler = scheduler
        self._table = OutputTable(tokenizer)
        self._faults = faults

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            turn = await self.inbox.receive_all()
            self._faults.hit("dispatcher.before_apply")
            for step in turn:
                for fact in step.facts:
                    self._table.apply(fact)
            self._release_slice()
            while self._table.has_unreleased:
                await trio.lowlevel.checkpoint()
                self._release_slice()

    def open(self, request: GenerationRequest, sink: Sink) -> None:
        """Deliver the outputs of this request into `sink`, from now on.

        Raises:
            InternalError: The request is open already.
        """
        self._table.open(request, sink)

    def close(self, request_id: RequestId) -> None:
        """Deliver nothing more of this request. An unknown or closed one is fine."""
        self._table.close(request_id)

    def conclude(self, request_id: RequestId, reason: FinishReason) -> None:
        """End every output of a request where it is; what is held back is delivered."""
        self._table.conclude(request_id, reason)

    def fail(self, request_id: RequestId, error: TrioletError) -> bool:
        """End a request with an error, and deliver nothing more; False if it is not open."""
        return self._table.fail(request_id, error)

    def fail_all(self, error: TrioletError) -> None:
        """End every request with its own copy of an error: the engine cannot go on."""
        self._table.fail_all(error)

    def usage(self, request_id: RequestId) -> Usage | None:
        """Tokens that an open request has used so far."""
        return self._table.usage(request_id)

    def statistics(self) -> DispatcherStatistics:
        """A moment in its life."""
        return DispatcherStatistics(self.inbox.statistics(), self._table.statistics())

    def _release_slice(self) -> None:
        for reply in self._table.release(OUTPUTS_PER_SLICE):
            self._scheduler.send_nowait(reply)
