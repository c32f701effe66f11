"""A simulated client: plays its plan against the engine and remembers all it got."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import trio

from triolet.engine.engine import Engine
from triolet.engine.stream import RequestStream
from triolet.errors import EngineDead, Rejected, RequestFailed, TrioletError
from triolet.output import OutputDelta, TokenLogprobs, Usage
from triolet.request import FinishReason
from triolet.sampling_params import OutputKind
from triolet.testing.http_client import StreamBroken, ask_over_http
from triolet.testing.workloads import ClientPlan

if TYPE_CHECKING:
    from triolet.testing.world import World


class BrokenSink(Exception):
    """What a sink raises that is broken on purpose."""


@attrs.define
class ReceivedOutput:
    """What a client got of one output.

    Attributes:
        token_ids: All tokens so far.
        text: All text so far.
        logprobs: Entries so far.
        finish_reason: How it ended, if it has.
        stop_reason: What ended it.
        pieces_after_end: Pieces that came although it had ended.
    """

    token_ids: list[int] = attrs.field(factory=list[int])
    text: str = ""
    logprobs: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    pieces_after_end: int = 0

    def take(self, delta: OutputDelta, kind: OutputKind) -> None:
        """Add a piece, or everything so far."""
        if self.finish_reason is not None:
            self.pieces_after_end += 1
        if kind is not OutputKind.DELTA:
            self.token_ids.clear()
            self.text, self.logprobs = "", 0
        self.token_ids += delta.token_ids
        self.text += delta.text
        self.logprobs += len(delta.logprobs or ())
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason


class SimulatedClient:
    """One client of a run.

    Attributes:
        plan: What it does.
        label: Its name in the engine.
        outputs: What it got, per output.
        usage: What it was told at the end.
        error: What it was told instead.
        end: How it ended: "finished", "refused", "failed", "dead", "left", "unserved".
        told: Why it was made to leave, if it was.
        arrived_at: When it came, in seconds of the run.
        ended_at: When it was gone.
        prompt_logprobs: Those of the prompt, if they came.
        ends_seen: Calls of `finish` and `fail` of its own sink.
        is_entering: Whether it waits to be admitted.
        is_streaming: Whether it was admitted.
    """

    def __init__(self, plan: ClientPlan, world: World) -> None:
        self.plan = plan
        self.label = f"client-{plan.number}"
        self.outputs: dict[int, ReceivedOutput] = {}
        self.usage: Usage | None = None
        self.error: TrioletError | None = None
        self.end: str | None = None
        self.told: str | None = None
        self.arrived_at: float | None = None
        self.ended_at: float | None = None
        self.prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        self.ends_seen = 0
        self.is_entering = False
        self.is_streaming = False
        self._world = world
        self._scope = trio.CancelScope()
        self._disconnect: Callable[[], None] | None = None

    @property
    def number(self) -> int:
        """Its name."""
        return self.plan.number

    @property
    def is_present(self) -> bool:
        """Whether it has come, is not gone, and was not told to leave."""
        return self.arrived_at is not None and self.end is None and self.told is None

    def leave(self, why: str) -> None:
        """Make it leave: its scope is cancelled."""
        self.told = why
        if self._disconnect is not None:
            self._disconnect()
        else:
            self._scope.cancel(reason="client disconnected")

    async def run(self) -> None:
        """Come, ask, read, go. Returns when it is gone, whatever happened."""
        world, plan = self._world, self.plan
        await world.opened.wait()
        await trio.sleep_until(world.open_time + plan.arrives_s)
        self.arrived_at = world.now
        engine = world.engine
        if engine is None:
            self.end = "unserved"
        else:
            await self._visit(engine)
        self.ended_at = world.now
        cause = None if self.error is None else self.error.code
        world.note("end", self.number, self.end, cause)
        world.count(f"end {self.end}")

    async def _visit(self, engine: Engine) -> None:
        world_http = self._world.http
        with self._scope as scope:
            if self.plan.leaves_after_s is not None:
                scope.deadline = trio.current_time() + self.plan.leaves_after_s
            try:
                if self.plan.via == "http":
                    assert world_http is not None
                    await ask_over_http(self, world_http)
                else:
                    await self._ask(engine)
            except Rejected as error:
                self.end, self.error = "refused", error
            except RequestFailed as error:
                self.end, self.error = "failed", error
            except EngineDead as error:
                self.end, self.error = "dead", error
            except StreamBroken as error:
                self.end, self.error = "broken", error
        if scope.cancelled_caught:
            self.end = "left"

    async def _ask(self, engine: Engine) -> None:
        plan = self.plan
        prompt = plan.prompt
        self.is_entering = True
        try:
            async with engine.generate(
                "".join(map(chr, prompt)) if plan.is_text else prompt,
                plan.sampling,
                timeouts=plan.timeouts,
                priority=plan.priority,
                cache_salt=plan.cache_salt,
                label=self.label,
                prefix=plan.prefix,
                sink=_ClientSink(self) if plan.has_sink else None,
            ) as stream:
                self.is_entering, self.is_streaming = False, True
                await self._consume(stream)
        finally:
            self.is_entering = False

    async def _consume(self, stream: RequestStream) -> None:
        plan = self.plan
        if plan.ignores_s is not None:
            await trio.sleep(plan.ignores_s)
            self.end = "left"
            return
        if plan.has_sink:
            self.usage = await stream.wait_finished()
            self.prompt_logprobs = stream.prompt_logprobs
            self.end = "finished"
            return
        pieces = 0
        async for delta in stream:
            self.take(delta)
            pieces += 1
            if pieces == plan.breaks_after:
                self.end = "left"
                return
            if plan.read_delay_s:
                await trio.sleep(plan.read_delay_s)
        self.usage = stream.usage
        self.prompt_logprobs = stream.prompt_logprobs
        self.end = "finished"

    def disconnect_with(self, disconnect: Callable[[], None]) -> None:
        """From now on, leaving means this: the connection is closed, as a real client does."""
        self._disconnect = disconnect

    def take(self, delta: OutputDelta) -> None:
        """Take a piece of an output."""
        output = self.outputs.setdefault(delta.index, ReceivedOutput())
        output.take(delta, self.plan.sampling.output_kind)
        self._world.note(
            "delta", self.number, delta.index, len(output.token_ids), delta.finish_reason
        )


class _ClientSink:
    """The sink of a client that brings its own."""

    def __init__(self, client: SimulatedClient) -> None:
        self._client = client
        self._pieces = 0

    def start(self, cached_tokens: int) -> None:
        """Nothing to do: the checks see the start in the registry."""

    def put(self, delta: OutputDelta) -> None:
        """Take a piece, or break."""
        if self._pieces == self._client.plan.sink_breaks_at:
            raise BrokenSink("broken on purpose")
        self._pieces += 1
        self._client.take(delta)

    def score_prompt(self, logprobs: tuple[TokenLogprobs | None, ...]) -> None:
        """Nothing to do: the stream has them too."""

    def finish(self, usage: Usage) -> None:
        """Count the end."""
        self._client.ends_seen += 1

    def fail(self, error: Exception) -> None:
        """Count the end."""
        self._client.ends_seen += 1
