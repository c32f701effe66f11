"""Classic bugs of serving engines, each planted by replacing one function of the engine.

Each is known from a public report or from a prototype of ours; the harness must find all of
them. `docs/explanation/simulation.md` has the same list as a table, with what finds each.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import trio

from triolet.actor.channel import Channel
from triolet.actor.end_marks import EndMarks
from triolet.dispatcher.backpressure import DeltaBuffer
from triolet.dispatcher.output_table import OutputTable
from triolet.dispatcher.sequence_output import SequenceOutput
from triolet.engine.input_processor import InputProcessor
from triolet.engine.stream import RequestStream
from triolet.output import OutputDelta
from triolet.request import RequestId
from triolet.runner.actor import DeviceRunner
from triolet.sampling_params import OutputKind
from triolet.scheduler.block_pool import BlockPool
from triolet.scheduler.kv_cache_manager import KVCacheManager, SequenceBlocks
from triolet.scheduler.poison import Suspects
from triolet.scheduler.prefix_cache import PrefixCache
from triolet.scheduler.scheduler import Scheduler
from triolet.scheduler.sequence import Sequence
from triolet.tracker.admission import Reservation
from triolet.tracker.deadlines import Deadlines
from triolet.tracker.registry import Registry

Plant = Callable[[pytest.MonkeyPatch], None]


@attrs.frozen
class PlantedBug:
    """One bug.

    Attributes:
        name: What it is.
        plant: Puts it in.
        scenarios: Where it shows.
        checks: Which checks may find it first.
    """

    name: str
    plant: Plant
    scenarios: tuple[str, ...]
    checks: frozenset[str]


BUGS: dict[str, PlantedBug] = {}


def bug(scenarios: str, checks: str) -> Callable[[Plant], Plant]:
    """Take a bug into the list."""

    def add(plant: Plant) -> Plant:
        name = plant.__name__
        BUGS[name] = PlantedBug(name, plant, tuple(scenarios.split()), frozenset(checks.split()))
        return plant

    return add


@bug("leaving-clients", "ended blocks idle")
def marks_are_taken_up_one_turn_late(patch: pytest.MonkeyPatch) -> None:
    """A step is decided before the end marks of this turn."""
    drain = EndMarks.drain
    late: dict[int, list[RequestId]] = {}

    def drain_late(self: EndMarks) -> list[RequestId]:
        taken = late.pop(id(self), [])
        late[id(self)] = drain(self)
        return taken

    patch.setattr(EndMarks, "drain", drain_late)


@bug("leaving-clients", "idle ended")
def leaving_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    """The blocks of a request that was left are free at the next step, if one ever comes."""

    def mark(self: EndMarks, request_id: RequestId) -> None:
        self._marked.append(request_id)

    patch.setattr(EndMarks, "mark", mark)


@bug("leaving-clients deadlines", "leftovers credits ends")
def a_credit_is_not_returned(patch: pytest.MonkeyPatch) -> None:
    """A reservation is given back only if its request had started."""
    release = Reservation.release

    def release_started(self: Reservation, now: float) -> None:
        if not self._queued:
            release(self, now)

    patch.setattr(Reservation, "release", release_started)


@bug("leaving-clients", "leftovers")
def cancelled_tokenizing_keeps_its_credit(patch: pytest.MonkeyPatch) -> None:
    """Nobody is told when the thread of a cancelled request ends."""
    tokenize = InputProcessor.tokenize

    async def forgetful(self: InputProcessor, *args: object, **options: object) -> object:
        options["on_abandoned"] = None
        return await tokenize(self, *args, **options)  # type: ignore[arg-type]  # as they came

    patch.setattr(InputProcessor, "tokenize", forgetful)


@bug("quiet", "outputs")
def half_a_stop_string_is_shown(patch: pytest.MonkeyPatch) -> None:
    """Text is released that can still become a stop string."""

    release = SequenceOutput.release

    def release_all(self: SequenceOutput) -> OutputDelta | None:
        delta = release(self)
        held = self._held.token_ids
        if delta is None and held and self._sampling.output_kind is OutputKind.DELTA:
            return self._take(len(held), self._text())
        return delta

    patch.setattr(SequenceOutput, "release", release_all)


@bug("worker-dies poison", "outputs kv_content ends")
def a_dead_runners_blocks_are_found_in_the_cache(patch: pytest.MonkeyPatch) -> None:
    """The prefix cache survives the worker that held the blocks."""
    patch.setattr(PrefixCache, "reset", lambda self: None)


@bug("small-pool quiet", "kv_content outputs blocks")
def a_fork_shares_the_block_that_is_being_filled(patch: pytest.MonkeyPatch) -> None:
    """Siblings write their different tokens into one block."""
    fork = KVCacheManager.fork

    def fork_more(
        self: KVCacheManager, parent: SequenceBlocks, child: SequenceBlocks, num_tokens: int
    ) -> bool:
        return fork(self, parent, child, num_tokens + self.block_size - 1)

    patch.setattr(KVCacheManager, "fork", fork_more)


@bug("small-pool", "blocks kv_content crash ends")
def a_shared_block_is_freed_with_its_first_owner(patch: pytest.MonkeyPatch) -> None:
    """Sharing a block does not count."""
    patch.setattr(BlockPool, "share", lambda self, block: None)


@bug("small-pool", "blocks")
def a_preempted_sequence_goes_on_where_it_was(patch: pytest.MonkeyPatch) -> None:
    """Preemption forgets the blocks and keeps the count of computed tokens."""

    def lose_blocks(self: Sequence) -> None:
        self.num_sent_blocks = 0
        self.epoch += 1

    patch.setattr(Sequence, "lose_blocks", lose_blocks)


@bug("worker-dies worker-lies", "progress ends deaths")
def a_hang_is_never_noticed(patch: pytest.MonkeyPatch) -> None:
    """No step has a time limit."""
    patch.setattr(DeviceRunner, "_set_timer", lambda self: None)


@bug("worker-lies", "health outputs")
def a_corrupt_result_is_believed(patch: pytest.MonkeyPatch) -> None:
    """Answers are not compared with what was asked."""
    patch.setattr(DeviceRunner, "_check", lambda self, result, info: None)


@bug("poison", "ends")
def the_first_death_makes_poison(patch: pytest.MonkeyPatch) -> None:
    """Whoever was in the step that died is blamed at once."""
    died = Suspects.runner_died

    def blame(self: Suspects, rows: object) -> RequestId | None:
        listed = list(rows)  # type: ignore[call-overload]  # an iterable of rows
        died(self, listed)
        if not listed:
            return None
        self.dismiss(listed[0][0])
        return RequestId(listed[0][0])

    patch.setattr(Suspects, "runner_died", blame)


@bug("poison", "ends deaths progress canary")
def poison_is_never_found(patch: pytest.MonkeyPatch) -> None:
    """The worker dies of the same request until it may not be restarted any more."""
    patch.setattr(Suspects, "are_isolated", property(lambda self: False))


@bug("deadlines", "progress ends deadlines")
def deadlines_pass_unseen(patch: pytest.MonkeyPatch) -> None:
    """A deadline is looked at when something else happens, not when it passes."""
    patch.setattr(Deadlines, "next_time", property(lambda self: float("inf")))


@bug("leaving-clients", "metrics")
def the_last_end_wins(patch: pytest.MonkeyPatch) -> None:
    """What ends a request is decided again by whoever comes later."""
    end = Registry.end

    def end_again(self: Registry, entry: object, state: object, cause: str) -> bool:
        entry.state = type(entry.state)("running")  # type: ignore[attr-defined]
        return end(self, entry, state, cause)  # type: ignore[arg-type]

    patch.setattr(Registry, "end", end_again)


@bug("slow-consumers", "outputs usage")
def a_slow_reader_loses_pieces(patch: pytest.MonkeyPatch) -> None:
    """A piece that was not read yet is replaced by the next one."""

    def put(self: DeltaBuffer, delta: OutputDelta) -> None:
        self._waiting[delta.index] = [delta]

    patch.setattr(DeltaBuffer, "put", put)


@bug("slow-consumers", "health")
def a_broken_consumer_takes_the_dispatcher_down(patch: pytest.MonkeyPatch) -> None:
    """An exception in a sink is not caught."""

    def put(self: OutputTable, entry: object, delta: object) -> bool:
        entry.sink.put(delta)  # type: ignore[attr-defined]
        return not entry.closed  # type: ignore[attr-defined]

    patch.setattr(OutputTable, "_put", put)


@bug("time-and-clogs leaving-clients", "health progress")
def a_wake_up_eats_a_message(patch: pytest.MonkeyPatch) -> None:
    """The receiver that was woken does not look at what came meanwhile."""

    def woken(self: Channel[object]) -> list[object]:
        self._waking = False
        self.receive_all_nowait()
        return []

    patch.setattr(Channel, "_woken", woken)


@bug("worker-dies", "ends outputs deaths kv_content")
def a_dead_runners_results_are_used(patch: pytest.MonkeyPatch) -> None:
    """A request goes on at the new runner as if the old one still held it."""
    lost = Scheduler.runner_lost

    def keep_state(self: Scheduler, now: float) -> None:
        at_runner = [s for s in self._forest.sequences() if s.is_at_runner]
        lost(self, now)
        for sequence in at_runner:
            sequence.is_at_runner = True

    patch.setattr(Scheduler, "runner_lost", keep_state)


@bug("shutdown closed-under-load", "progress ends")
def closing_tells_nobody(patch: pytest.MonkeyPatch) -> None:
    """Clients of other tasks wait for ever when the engine is gone."""
    patch.setattr(OutputTable, "fail_all", lambda self, error: None)


@bug("quiet", "progress")
def an_end_wakes_no_reader(patch: pytest.MonkeyPatch) -> None:
    """The usage arrives and nobody looks."""

    def wake(self: RequestStream) -> None:
        if self._usage is None:
            self._changed.set()
            self._changed = trio.Event()

    patch.setattr(RequestStream, "_wake", wake)
