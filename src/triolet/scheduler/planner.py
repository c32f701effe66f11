"""Places sequences: who runs in the next step, on which blocks, and who must give way.

A step is planned in the order of the keys. Running sequences come first: a decode takes one
token, a prefill takes a chunk of what the decodes leave of the budget. One that gets no block
takes it from the last by key; the first by key takes from everyone, so it is never preempted
and always moves on, which is why everything ends. Then waiting sequences are admitted while
they fit, strictly in order: nobody overtakes the head of the queue, and nobody behind it is
looked at, so a step costs the same with ten waiting and with ten thousand.
"""

from __future__ import annotations

from collections.abc import Iterable

from triolet.config import SchedulerConfig
from triolet.messages.scheduler_to_runner import ScheduledSequence
from triolet.request import SequenceId
from triolet.scheduler.kv_cache_manager import KVCacheManager
from triolet.scheduler.plan import Plan, PlannerCounts, Row
from triolet.scheduler.policy import GROWTH_TOKENS_MAX, GrowthEstimate
from triolet.scheduler.request_queue import RunningSet, WaitingQueue
from triolet.scheduler.sequence import Sequence, SequenceStatus
from triolet.scheduler.tree import RequestTree

BLOCKED_STEPS = 16
"""A head of the queue that did not fit is looked at again when a block was released, and at
least this often, as meanwhile a prefix that it shares may have been computed."""


class Planner:
    """The waiting queue, the running set and the KV cache.

    Args:
        config: Budgets and policy.
        kv: The KV cache.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager) -> None:
        self._config = config
        self.kv = kv
        self.waiting = WaitingQueue()
        self.running = RunningSet()
        self.growth = GrowthEstimate()
        self.counts = PlannerCounts()
        self._forget: list[SequenceId] = []
        # The head of the queue that did not fit, and what must change before it may.
        self._blocked: tuple[Sequence, int, int, int] | None = None
        self._no_blocks: tuple[list[int], ...] = tuple([] for _ in range(kv.num_groups))

    # Verbs of the scheduler

    def enqueue(self, sequence: Sequence) -> None:
        """Let a sequence without blocks wait for its turn, or for what it depends on."""
        if sequence.num_pending or sequence.is_stalled:
            sequence.status = SequenceStatus.PARKED
        else:
            sequence.status = SequenceStatus.WAITING
            self.waiting.push(sequence)

    def fork(self, parent: Sequence, child: Sequence, num_tokens: int) -> None:
        """Place a new sequence that has the parent's first `num_tokens` tokens.

        It runs at once on the parent's full blocks. What is left of the prefix is computed
        again: less than a block, as nothing on the wire copies one.
        """
        shared = parent.status is SequenceStatus.RUNNING and self.kv.fork(
            parent.blocks, child.blocks, min(num_tokens, parent.num_confirmed)
        )
        if not shared:
            self.enqueue(child)
            return
        child.num_computed = child.num_confirmed = child.blocks.num_blocks * self.kv.block_size
        child.status = SequenceStatus.RUNNING
        self.running.add(child)

    def remove(self, sequence: Sequence) -> None:
        """End a sequence: its blocks are free now."""
        match sequence.status:
            case SequenceStatus.RUNNING:
                self.running.remove(sequence)
                self.kv.release(sequence.blocks)
            case SequenceStatus.WAITING:
                self.waiting.remove(sequence)
            case SequenceStatus.NEW | SequenceStatus.PARKED | SequenceStatus.ENDED:
                pass
        sequence.status = SequenceStatus.ENDED
        self.forget(sequence)

    def forget(self, sequence: Sequence) -> None:
        """The runner must not keep its state of a sequence; it gets a new one, or none."""
        if sequence.is_at_runner:
            sequence.is_at_runner = False
            self._forget.append(sequence.sequence_id)

    def confirm(self, row: Row) -> None:
        """A step with this row has ended: its tokens are computed, unless the blocks are lost."""
        sequence = row.sequence
        if row.epoch == sequence.epoch:
            sequence.num_confirmed = row.num_computed
            sequence.num_seen = max(sequence.num_seen, row.num_computed)
            self.kv.register(sequence.blocks, sequence.tokens, row.num_computed)

    def lose_all(self, sequences: Iterable[Sequence]) -> None:
        """The runner is gone: no block holds anything, and no step in flight will end.

        Args:
            sequences: Every live sequence.
        """
        for sequence in self.running.clear():
            self.kv.release(sequence.blocks)
            sequence.lose_blocks()
            sequence.status = SequenceStatus.PARKED
        self.kv.reset_prefix_cache()
        for sequence in sequences:
            sequence.is_at_runner = False
            sequence.num_pending = 0
            if sequence.status is SequenceStatus.PARKED:
                self.enqueue(sequence)
        self._forget.clear()
        self._blocked = None

    def take_forgotten(self) -> list[SequenceId]:
        """Sequences that the runner may forget, since the last call."""
        forgotten, self._forget = self._forget, []
        return forgotten

    def plan(self, step: int, *, idle: bool, only: RequestTree | None) -> Plan:
        """Choose the rows of the next step.

        Args:
            step: Its number.
            idle: Whether no step is in flight.
            only: Give rows to this request alone; None serves everyone.
        """
        plan = Plan(step, self._config.max_num_batched_tokens, idle)
        self._continue_running(plan, only)
        if not plan.preempted:
            self._admit_waiting(plan, only)
        if idle and not plan.rows:
            self._make_room(plan, only)
        return plan

    def check_integrity(self) -> None:
        """Assert that running sequences, and only they, hold blocks."""
        self.waiting.check_integrity()
        self.running.check_integrity()
        for sequence in self.running:
            assert sequence.status is SequenceStatus.RUNNING
            assert sequence.num_confirmed <= sequence.num_computed
            assert sequence.num_computed <= sequence.blocks.num_blocks * self.kv.block_size
            assert sequence.num_confirmed <= len(sequence.tokens)
        for sequence in self.waiting:
            assert sequence.status is SequenceStatus.WAITING
            assert sequence.blocks.num_blocks == 0
            assert sequence.num_computed == sequence.num_pending == 0
        self.kv.check_integrity(sequence.blocks for sequence in self.running)

    # One step

    def _continue_running(self, plan: Plan, only: RequestTree | None) -> None:
        sequences = self.running.snapshot()
        later_decodes: int | None = None
        for position, sequence in enumerate(sequences):
            if plan.budget == 0 or len(plan.rows) == self._config.max_num_seqs:
                return
            if sequence.status is not SequenceStatus.RUNNING:
                continue  # preempted in this step
            if only is not None and sequence.tree is not only:
                continue
            wanted = sequence.num_to_compute
            if wanted == 0:
                continue
            if wanted > 1:
                if later_decodes is None:
                    later_decodes = sum(s.num_to_compute == 1 for s in sequences[position:])
                wanted = self._chunk(wanted, plan.budget - later_decodes)
            elif later_decodes is not None:
                later_decodes -= 1
            got = self._extend(sequence, wanted, plan)
            if got:
                self._add_row(plan, sequence, got)

    def _chunk(self, wanted: int, room: int) -> int:
        """Tokens of a prefill in this step: at least one, however crowded the step is."""
        threshold = self._config.long_prefill_token_threshold
        if threshold:
            room = min(room, threshold)
        return max(1, min(wanted, room))

    def _extend(self, sequence: Sequence, wanted: int, plan: Plan) -> int:
        """Find blocks for a running sequence, preempting others; 0 if it must sit out."""
        while True:
            got = self.kv.extend(
                sequence.blocks, sequence.num_computed, sequence.num_confirmed, wanted
            )
            if got:
                return got
            victim = self._victim(sequence, plan)
            if victim is None:
                return 0
            self._preempt(victim, plan)

    def _victim(self, sequence: Sequence, plan: Plan) -> Sequence | None:
        """Who gives its blocks to `sequence`: the last by key that may be preempted.

        Those preempted often enough are spared, except from the first sequence that can run.
        """
        if plan.has_no_victim:
            return None
        spared: Sequence | None = None
        for candidate in self.running.from_last():
            if candidate is sequence:
                break
            if candidate.tree.num_preemptions < self._config.max_preemptions:
                return candidate
            spared = spared or candidate
        if plan.rows:
            plan.has_no_victim = True  # so there is none for the sequences after this one
            return None
        if spared is None and plan.idle:
            # Those before it hold blocks and cannot run, such as beams that wait for this
            # very sequence, and no step in flight will change that.
            spared = next((s for s in self.running.from_last() if s is not sequence), None)
        return spared

    def _preempt(self, victim: Sequence, plan: Plan) -> None:
        self.running.remove(victim)
        self.kv.release(victim.blocks)
        victim.lose_blocks()
        self.forget(victim)
        victim.tree.num_preemptions += 1
        self.counts.preemptions += 1
        self.growth.preempted()
        plan.preempted = True
        self.enqueue(victim)

    def _admit_waiting(self, plan: Plan, only: RequestTree | None) -> None:
        max_num_seqs = self._config.max_num_seqs
        while plan.budget > 0 and len(plan.rows) < max_num_seqs:
            if only is None and len(self.running) >= max_num_seqs:
                return
            sequence = self._head(only)
            if sequence is None:
                return
            now = (
                sequence,
                self.kv.pool.num_releases,
                len(self.running),
                plan.step // BLOCKED_STEPS,
            )
            if len(self.running) and self._blocked == now:
                return
            if not self._admit(sequence, plan):
                self._blocked = now
                return

    def _head(self, only: RequestTree | None) -> Sequence | None:
        if only is None:
            return self.waiting.peek()
        waiting = (s for s in only.live.values() if s.status is SequenceStatus.WAITING)
        return min(waiting, key=lambda s: s.key, default=None)

    def _admit(self, sequence: Sequence, plan: Plan) -> bool:
        """Start a waiting sequence if its known tokens and one more block fit.

        If nothing else holds blocks it starts in any case, in chunks as small as they must be.
        """
        known = len(sequence.tokens)
        use_cache = sequence.sampling.prompt_logprobs is None  # no cached block has logits
        hit = self.kv.find_prefix(sequence.blocks, sequence.tokens, use_cache=use_cache)
        found = hit.num_blocks * self.kv.block_size
        wanted = self._chunk(known - found, plan.budget)
        if len(self.running):
            if plan.reserve is None:
                plan.reserve = sum(map(self._growth_of, self.running))
            needed = self.kv.blocks_to_start(known, wanted, hit) + 1
            if needed + plan.reserve > self.kv.pool.num_available:
                return False
        self.kv.adopt(sequence.blocks, hit)
        got = self.kv.extend(sequence.blocks, found, found, wanted)
        assert got, "counted above, or the sequence is alone and fits"
        self.waiting.remove(sequence)
        self.running.add(sequence)
        sequence.status = SequenceStatus.RUNNING
        sequence.num_computed = sequence.num_confirmed = found
        self.counts.recomputed_tokens += max(0, sequence.num_seen - found)
        if use_cache:
            self.counts.prefix_queries += known
            self.counts.prefix_hits += found
        if not sequence.tree.is_started:
            sequence.tree.is_started = True
            sequence.tree.cached_tokens = min(found, sequence.tree.num_prompt_tokens)
            plan.started.append(sequence.tree)
        self._add_row(plan, sequence, got)
        if plan.reserve is not None:
            plan.reserve += self._growth_of(sequence)
        return True

    def _make_room(self, plan: Plan, only: RequestTree | None) -> None:
        """Nothing can run and nothing is in flight: let what waits have all the blocks."""
        while not plan.rows and len(self.running) and self._head(only) is not None:
            self._preempt(next(self.running.from_last()), plan)
            self._admit_waiting(plan, only)

    def _growth_of(self, sequence: Sequence) -> float:
        """Blocks to keep for a running sequence: all for known tokens, a share for the rest."""
        size = self.kv.block_size
        have = sequence.blocks.num_blocks
        length = len(sequence.tokens)
        known = max(have, -(-length // size))
        longest = min(sequence.tree.rule.num_tokens_max, length + GROWTH_TOKENS_MAX)
        final = max(known, -(-longest // size))
        footprint = self.kv.footprint
        at_known = footprint(known)
        return at_known - footprint(have) + self.growth.ratio * (footprint(final) - at_known)

    def _add_row(self, plan: Plan, sequence: Sequence, num_tokens: int) -> None:
        start = sequence.num_computed
        end = start + num_tokens
        samples = end == len(sequence.tokens) + sequence.num_pending
        blocks = sequence.blocks
        if not sequence.is_at_runner:
            sequence.is_at_runner = True
            sequence.num_sent_blocks = 0
            plan.new.append(sequence)
        if blocks.num_blocks == sequence.num_sent_blocks:
            new_blocks = self._no_blocks  # shared by all rows: a message is never changed
        else:
            new_blocks = tuple([t[sequence.num_sent_blocks :] for t in blocks.tables])
            sequence.num_sent_blocks = blocks.num_blocks
        plan.scheduled.append(
            ScheduledSequence(sequence.sequence_id, start, num_tokens, new_blocks, samples)
        )
        plan.rows.append(Row(sequence, sequence.epoch, end, samples))
        plan.budget -= num_tokens
        sequence.num_computed = end
        sequence.num_pending += samples
        self.counts.computed_tokens += num_tokens
        num_prompt_tokens = sequence.tree.num_prompt_tokens
        if start < num_prompt_tokens:
            self.counts.prompt_tokens += min(end, num_prompt_tokens) - start
