"""Decides what runs, and what its results mean. Synchronous: a plain loop can drive it.

    batch = scheduler.schedule(now)      # as often as steps may be in flight
    facts = scheduler.update(result, now)

Rules that everything here keeps:

* A request that ended holds nothing, from that moment on; results that still come for it are
  dropped and counted.
* A sequence is nothing but its tokens: after a preemption or the death of a runner it is
  computed again from them, and goes on.
* A block given back may be given away at once, although a step in flight still writes to it,
  because a device executes its steps in order. For the same reason the prefix cache learns of
  a block only in `update`, when the step has ended and the sequence still held it.
"""

from __future__ import annotations

from collections import deque

from triolet.config import CacheConfig, SchedulerConfig
from triolet.errors import ConfigError, InternalError
from triolet.messages.runner_to_scheduler import BatchResult, RowError, RunnerInfo
from triolet.messages.scheduler_to_dispatcher import RequestStarted, SchedulerFact
from triolet.messages.scheduler_to_runner import ScheduledBatch, SequenceState
from triolet.request import GenerationRequest, RequestId
from triolet.sampling_params import SamplingParams
from triolet.scheduler import admission
from triolet.scheduler.forest import Forest
from triolet.scheduler.kv_cache_manager import KVCacheManager
from triolet.scheduler.plan import StepInFlight
from triolet.scheduler.planner import Planner
from triolet.scheduler.poison import Suspects
from triolet.scheduler.policy import request_key
from triolet.scheduler.sequence import Sequence, SequenceStatus
from triolet.scheduler.statistics import RequestStatistics, SchedulerStatistics
from triolet.scheduler.tree import RequestTree

__all__ = ["RequestStatistics", "Scheduler", "SchedulerStatistics"]


class Scheduler:
    """Requests, sequences and KV blocks of one runner.

    It schedules nothing before `runner_restored` is called for the first time.

    Args:
        config: Budgets and policy.
        cache: Whether there is a prefix cache; sizes are the runner's.
        info: The runner.
        eos_token_ids: Tokens that end an output unless `ignore_eos`.
        model_key: Everything that decides what a KV block holds: model, revision, dtype.
        secret: Random bytes of this process: keys of the prefix cache cannot be predicted.

    Attributes:
        max_model_len: Longest context: the runner's, or less if the KV cache holds less. If
            it is less the operator should be told.

    Raises:
        ConfigError: The KV cache does not even hold the shortest request.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        info: RunnerInfo,
        *,
        eos_token_ids: tuple[int, ...],
        model_key: str,
        secret: bytes,
    ) -> None:
        kv = KVCacheManager(
            info,
            enable_prefix_caching=cache.enable_prefix_caching,
            model_key=model_key,
            secret=secret,
        )
        self.max_model_len = min(info.max_model_len, kv.capacity_tokens)
        if self.max_model_len < 2:
            raise ConfigError(
                f"the KV cache has {info.num_blocks} blocks of {info.block_size} tokens for "
                f"{len(info.groups)} groups of layers: too few for a prompt and one token",
                param="kv_cache_memory_bytes",
            )
        self._config = config
        self._info = info
        self._eos_token_ids = eos_token_ids
        self._incarnation: int | None = None
        self._planner = Planner(config, kv)
        self._suspects = Suspects()
        self._forest = Forest(self._planner, self._suspects)
        self._in_flight: deque[StepInFlight] = deque()
        self._num_requests = 0
        self._step = 0
        self._num_steps_ended = 0
        self._num_dropped = 0
        self._num_runner_losses = 0

    # Requests

    def check_fits(
        self, num_prompt_tokens: int, sampling: SamplingParams, num_prefix_tokens: int = 0
    ) -> None:
        """Refuse a request that could never run; see `admission.check_fits`.

        Raises:
            PromptTooLong: It does not fit the model's context or the KV cache.
            InvalidRequest: There is no prompt, or the parameters exclude each other.
        """
        admission.check_fits(num_prompt_tokens, sampling, num_prefix_tokens, self.max_model_len)

    def add(self, request: GenerationRequest, now: float) -> None:
        """Take on a request. `now` is not earlier than at any call before.

        Raises:
            InvalidRequest: `check_fits` would have refused it; nothing was taken on.
        """
        assert request.request_id not in self._forest.trees, f"{request.request_id} is live"
        self.check_fits(request.num_prompt_tokens, request.sampling, len(request.prefix))
        self._num_requests += 1
        key = request_key(request, self._config, self._num_requests)
        self._forest.plant(RequestTree.of(request, key, self._eos_token_ids, self.max_model_len))

    def end(self, request_id: RequestId) -> None:
        """The request is over, whatever its state: its blocks are free when this returns.

        Nothing is said about it any more. Idempotent; an unknown id is fine.
        """
        self._forest.fell(request_id)

    def stop_matched(self, request_id: RequestId, index: int, num_output_tokens: int) -> None:
        """A stop string ended an output after this many tokens; later tokens are void.

        An output that ended already, or a request that is gone, is fine. The only facts it
        can cause are those of siblings that `keep` cancels.
        """
        self._forest.stop(request_id, index, num_output_tokens)

    @property
    def has_work(self) -> bool:
        """Whether any request is live."""
        return bool(self._forest.trees)

    # Steps

    def schedule(self, now: float) -> ScheduledBatch | None:
        """Plan the next step; None if there is nothing to run, or no room for another step.

        Rows of a sequence in flight assume that it goes on: the token that is not known yet
        stays on the device. `take_facts` afterwards tells which requests have started.
        """
        only = self._isolated()
        limit = 1 if only is not None else self._info.steps_in_flight
        if self._incarnation is None or len(self._in_flight) >= limit:
            return None
        plan = self._planner.plan(self._step, idle=not self._in_flight, only=only)
        for tree in plan.started:
            self._forest.facts.append(RequestStarted(tree.request_id, tree.cached_tokens))
        if not plan.rows:
            return None
        batch = ScheduledBatch(
            incarnation=self._incarnation,
            step=self._step,
            new=[self._state(sequence) for sequence in plan.new],
            scheduled=plan.scheduled,
            ended=self._planner.take_forgotten(),
        )
        self._in_flight.append(StepInFlight.of(plan))
        self._step += 1
        return batch

    def update(self, result: BatchResult, now: float) -> list[SchedulerFact]:
        """Take in what a step produced.

        Returns:
            Everything that happened since the last call, in order (see `take_facts`).

        Raises:
            InternalError: The result does not answer the oldest step in flight. Nothing was
                changed; the runner cannot be trusted any more.
        """
        if result.incarnation != self._incarnation:
            self._num_dropped += len(result.token_ids)
            return self.take_facts()
        self._check(result)
        step = self._in_flight.popleft()
        self._num_steps_ended += 1
        errors = {error.sequence_id: error for error in result.errors}
        scores = {scored.sequence_id: scored for scored in result.prompt_logprobs}
        position = -1
        for row in step.rows:
            sequence = row.sequence
            error = errors.get(sequence.sequence_id) if errors else None
            position += row.samples and error is None
            if sequence.status is SequenceStatus.ENDED:
                self._num_dropped += row.samples and error is None
                continue
            if error is not None:
                self._fail(sequence.tree, error)
                continue
            self._planner.confirm(row)
            if self._suspects:
                self._forest.clear_suspect(sequence, row)
            if sequence.sequence_id in scores:
                self._forest.score_prompt(sequence, scores[sequence.sequence_id])
            if row.samples:
                logprobs = result.logprobs[position] if result.logprobs else None
                self._forest.grow(sequence, result.token_ids[position], logprobs)
        return self.take_facts()

    def take_facts(self) -> list[SchedulerFact]:
        """What happened since the last call of this or of `update`, in order."""
        facts, self._forest.facts = self._forest.facts, []
        return facts

    # The runner

    def runner_lost(self, now: float) -> None:
        """The runner died. Every request goes back to waiting, with all its known tokens.

        A request proven to kill the runner fails with code "poison_request". Nothing is
        scheduled before `runner_restored`.
        """
        assert self._incarnation is not None, "no runner is there to be lost"
        rows = [
            (row.sequence.tree.request_id, row.sequence.sequence_id, row.num_computed)
            for step in self._in_flight
            for row in step.rows
            if row.sequence.status is not SequenceStatus.ENDED
        ]
        self._incarnation = None
        self._num_runner_losses += 1
        self._in_flight.clear()
        self._planner.lose_all(self._forest.sequences())
        poison = self._suspects.runner_died(rows)
        if poison is not None:
            self._forest.fail(
                poison,
                "poison_request",
                "the request was running alone when the model runner died, for at least the "
                "third time in a row",
            )

    def runner_restored(self, info: RunnerInfo, incarnation: int) -> None:
        """A runner is ready: the first one, or another in the place of the lost one."""
        assert self._incarnation is None, "the runner before it was not lost"
        for name in ("num_blocks", "block_size", "groups", "max_model_len", "vocab_size"):
            before, after = getattr(self._info, name), getattr(info, name)
            assert before == after, f"the new runner has another {name}: {after}, not {before}"
        self._info = info
        self._incarnation = incarnation

    def reset_prefix_cache(self) -> None:
        """Forget the content of every KV block; running sequences keep theirs."""
        self._planner.kv.reset_prefix_cache()

    # Sight

    def statistics(self) -> SchedulerStatistics:
        """A moment of it, O(running)."""
        planner, pool, counts = self._planner, self._planner.kv.pool, self._planner.counts
        running = len({id(sequence.tree) for sequence in planner.running})
        return SchedulerStatistics(
            requests_running=running,
            requests_waiting=len(self._forest.trees) - running,
            sequences_running=len(planner.running),
            sequences_waiting=len(planner.waiting),
            blocks_total=pool.num_blocks,
            blocks_used=pool.num_used,
            blocks_cached=pool.num_cached,
            blocks_free=pool.num_free,
            steps=self._num_steps_ended,
            steps_in_flight=len(self._in_flight),
            computed_tokens=counts.computed_tokens,
            recomputed_tokens=counts.recomputed_tokens,
            sampled_tokens=self._forest.num_sampled,
            prefix_queries=counts.prefix_queries,
            prefix_hits=counts.prefix_hits,
            preemptions=counts.preemptions,
            dropped_results=self._num_dropped,
            growth_ratio=planner.growth.ratio,
            suspects=len(self._suspects),
            runner_losses=self._num_runner_losses,
        )

    @property
    def tokens_processed(self) -> int:
        """Prompt tokens given to the runner and tokens sampled, since the start."""
        return self._planner.counts.prompt_tokens + self._forest.num_sampled

    def requests(self) -> list[RequestStatistics]:
        """Every live request, in the order of arrival: O(live), for people."""
        return [
            RequestStatistics(
                request_id=tree.request_id,
                phase=tree.phase,
                arrival_time=tree.request.arrival_time,
                sequences=len(tree.live),
                blocks=sum(s.blocks.num_held for s in tree.live.values()),
                prompt_tokens=tree.num_prompt_tokens,
                output_tokens=sum(s.num_output_tokens for s in tree.live.values()),
                computed_tokens=sum(s.num_confirmed for s in tree.live.values()),
                preemptions=tree.num_preemptions,
                is_suspect=tree.request_id in self._suspects,
            )
            for tree in self._forest.trees.values()
        ]

    def check_integrity(self) -> None:
        """Assert everything that must hold between two calls. O(blocks + live)."""
        self._planner.check_integrity()
        self._forest.check_integrity()
        pending: dict[Sequence, int] = {}
        for step in self._in_flight:
            for row in step.rows:
                pending[row.sequence] = pending.get(row.sequence, 0) + row.samples
        for sequence in self._forest.sequences():
            assert sequence.num_pending == pending.get(sequence, 0), sequence.sequence_id
        assert len(self._in_flight) <= self._info.steps_in_flight

    # Leaves

    def _isolated(self) -> RequestTree | None:
        """The suspect that runs alone now, if suspects must."""
        if not self._suspects.are_isolated:
            return None
        trees = [self._forest.trees[request_id] for request_id in self._suspects.request_ids]
        return min(trees, key=lambda tree: tree.key)

    def _state(self, sequence: Sequence) -> SequenceState:
        return SequenceState(
            sequence_id=sequence.sequence_id,
            token_ids=sequence.tokens.copy(),
            num_prompt_tokens=sequence.tree.num_prompt_tokens,
            sampling=sequence.sampling,
            sample_index=sequence.index,
            eos_token_ids=self._eos_token_ids,
        )

    def _fail(self, tree: RequestTree, error: RowError) -> None:
        self._forest.fail(tree.request_id, error.code, error.message)

    def _check(self, result: BatchResult) -> None:
        """Raise InternalError unless the result answers the oldest step in flight."""
        if not self._in_flight or self._in_flight[0].step != result.step:
            steps = [step.step for step in self._in_flight]
            raise InternalError(f"the runner answered step {result.step}; in flight are {steps}")
        self._in_flight[0].check(result, self._info.vocab_size)
