"""A runner without a model that checks every read of the KV cache.

Its memory holds, per slot, which token of which prefix was stored there. A row reads what the
attention of each KV group would read and finds a mistake of any kind: a wrong block, a block
given away too early, a share that is none, a missing window. The token a row samples is a
function of all tokens before it, so that the outputs of any schedule equal `reference`.
"""

from __future__ import annotations

import math
from collections import deque

import attrs

from triolet.messages.runner_to_scheduler import (
    BatchResult,
    KVGroup,
    PromptLogprobs,
    RowError,
    RunnerInfo,
)
from triolet.messages.scheduler_to_runner import ScheduledBatch, SequenceState
from triolet.output import TokenLogprobs
from triolet.request import SequenceId
from triolet.sampling_params import SamplingParams

EOS = 0
VOCAB_SIZE = 23


def extend_hash(prefix: int, token: int) -> int:
    """Hash of a prefix with one more token; ints hash alike in every process."""
    return hash((prefix, token, 7919))


def prefix_hashes(tokens: list[int]) -> list[int]:
    """Hash of tokens[: i + 1], for every i."""
    out: list[int] = []
    value = 0
    for token in tokens:
        value = extend_hash(value, token)
        out.append(value)
    return out


def sample(prefix: int, sampling: SamplingParams, index: int) -> int:
    """The next token: a function of all tokens so far, the seed and the sample index."""
    if sampling.is_greedy:
        return top_logprobs(prefix, 1)[0][0]
    return hash((prefix, sampling.seed, index)) % VOCAB_SIZE


def top_logprobs(prefix: int, count: int) -> tuple[tuple[int, float], ...]:
    """The most likely next tokens, best first."""
    weights = [(hash((prefix, token)) % 997 + 1, -token) for token in range(VOCAB_SIZE)]
    total = sum(weight for weight, _ in weights)
    best = sorted(weights, reverse=True)[:count]
    return tuple((-token, math.log(weight / total)) for weight, token in best)


def prompt_score(prefix: int, token: int) -> TokenLogprobs:
    """What is reported for a prompt token after a prefix."""
    return TokenLogprobs(token, -(prefix % 13) / 7, 1)


def _spoiled(sequence_id: SequenceId) -> int:
    """Stands in the memory for what a failed row of this sequence stored."""
    return hash((-1, -1, int(sequence_id)))


@attrs.define
class HeldSequence:
    """What the runner keeps of a sequence."""

    state: SequenceState
    tokens: list[int]
    hashes: list[int]
    tables: list[list[int]]


class KVRunner:
    """Computes batches when they are launched, as a device does, in order.

    Args:
        info: What it claims to be.
        max_num_seqs: Rows it accepts.
        max_num_batched_tokens: Tokens it accepts.
    """

    def __init__(self, info: RunnerInfo, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.info = info
        self.incarnation = 1
        self.num_prompt_tokens_computed = 0
        self.num_tokens_computed = 0
        self.in_flight: deque[tuple[ScheduledBatch, BatchResult]] = deque()
        self.failing: set[SequenceId] = set()
        """Sequences that get a row error the next time they sample."""
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._held: dict[SequenceId, HeldSequence] = {}
        self._memory: dict[tuple[int, int], tuple[int, int, int]] = {}

    @property
    def num_held(self) -> int:
        """Sequences it keeps."""
        return len(self._held)

    def die(self) -> None:
        """Lose everything and come back as another incarnation."""
        self.incarnation += 1
        self.in_flight.clear()
        self._held.clear()
        self._memory.clear()

    def launch(self, batch: ScheduledBatch) -> None:
        """Compute a batch; its result waits in `in_flight`."""
        assert batch.incarnation == self.incarnation
        assert len(self.in_flight) < self.info.steps_in_flight
        self._check_limits(batch)
        for sequence_id in batch.ended:
            del self._held[sequence_id]
        for state in batch.new:
            assert state.sequence_id not in self._held, "sent whole although it is held"
            tokens = list(state.token_ids)
            self._held[state.sequence_id] = HeldSequence(
                state, tokens, prefix_hashes(tokens), [[] for _ in self.info.groups]
            )
        self._store(batch)
        for row in batch.scheduled:
            self._attend(row.sequence_id, row.num_computed_tokens, row.num_new_tokens)
        self.in_flight.append((batch, self._result(batch)))

    def collect(self) -> BatchResult:
        """The result of the oldest batch in flight."""
        return self.in_flight.popleft()[1]

    def _check_limits(self, batch: ScheduledBatch) -> None:
        ids = [row.sequence_id for row in batch.scheduled]
        assert ids, "an empty batch"
        assert len(set(ids)) == len(ids) <= self._max_num_seqs
        assert batch.num_tokens <= self._max_num_batched_tokens
        assert {state.sequence_id for state in batch.new} <= set(ids)

    def _store(self, batch: ScheduledBatch) -> None:
        """Append block tables, then write the KV of every new token of every row."""
        size = self.info.block_size
        written: set[tuple[int, int]] = set()
        for row in batch.scheduled:
            held = self._held[row.sequence_id]
            end = row.num_computed_tokens + row.num_new_tokens
            assert row.num_new_tokens >= 1
            assert end <= len(held.tokens), "tokens that nobody knows"
            assert row.samples == (end == len(held.tokens))
            self.num_tokens_computed += row.num_new_tokens
            for group, table in enumerate(held.tables):
                table += row.new_block_ids[group]
                for position in range(row.num_computed_tokens, end):
                    slot = (table[position // size], position % size)
                    assert 0 <= slot[0] < self.info.num_blocks
                    assert slot not in written, "two rows write one slot"
                    written.add(slot)
                    self._memory[slot] = (group, position, held.hashes[position])

    def _attend(self, sequence_id: SequenceId, start: int, count: int) -> None:
        """Read what the new tokens attend to."""
        size = self.info.block_size
        held = self._held[sequence_id]
        for group, table in enumerate(held.tables):
            window = self.info.groups[group].window
            first = 0 if window is None else max(0, start - window + 1)
            for position in range(first, start + count):
                found = self._memory.get((table[position // size], position % size))
                wanted = (group, position, held.hashes[position])
                spoiled = (group, position, _spoiled(sequence_id))
                assert found in (wanted, spoiled), (
                    f"sequence {sequence_id}, group {group}, position {position}: "
                    f"block {table[position // size]} holds {found}, not {wanted}"
                )

    def _spoil(self, held: HeldSequence, start: int, end: int) -> None:
        """What a failed row stored is worth nothing, except to its own rows in flight."""
        size = self.info.block_size
        for group, table in enumerate(held.tables):
            for position in range(start, end):
                slot = (table[position // size], position % size)
                self._memory[slot] = (group, position, _spoiled(held.state.sequence_id))

    def _result(self, batch: ScheduledBatch) -> BatchResult:
        result = BatchResult(batch.incarnation, batch.step, [], [])
        for row in batch.scheduled:
            held = self._held[row.sequence_id]
            sampling = held.state.sampling
            end = row.num_computed_tokens + row.num_new_tokens
            if sampling.prompt_logprobs is not None:
                first, last = (
                    row.num_computed_tokens + 1,
                    min(end + 1, held.state.num_prompt_tokens),
                )
                scores = [
                    prompt_score(held.hashes[position - 1], held.tokens[position])
                    for position in range(first, last)
                ]
                if scores:
                    scored = PromptLogprobs(row.sequence_id, first, scores)
                    result.prompt_logprobs.append(scored)
            if not row.samples:
                continue
            if row.sequence_id in self.failing:
                self.failing.discard(row.sequence_id)
                error = RowError(row.sequence_id, "request_failed", "told to fail")
                result.errors.append(error)
                self._spoil(held, row.num_computed_tokens, end)
                held.tokens.append(EOS)
                held.hashes.append(extend_hash(held.hashes[-1], EOS))
                continue
            prefix = held.hashes[-1]
            token = sample(prefix, sampling, held.state.sample_index)
            logprobs = None
            if sampling.logprobs is not None:
                top = top_logprobs(prefix, VOCAB_SIZE)
                rank = [t for t, _ in top].index(token)
                logprobs = TokenLogprobs(token, top[rank][1], rank + 1, top[: sampling.logprobs])
            result.sequence_ids.append(row.sequence_id)
            result.token_ids.append(token)
            result.logprobs.append(logprobs)
            held.tokens.append(token)
            held.hashes.append(extend_hash(prefix, token))
        return result


def runner_info(
    num_blocks: int,
    block_size: int,
    windows: tuple[int | None, ...] = (None,),
    max_model_len: int = 64,
    steps_in_flight: int = 1,
) -> RunnerInfo:
    """A runner with one KV group per window."""
    return RunnerInfo(
        num_blocks=num_blocks,
        block_size=block_size,
        groups=tuple(KVGroup(1, window) for window in windows),
        block_bytes=1,
        max_model_len=max_model_len,
        vocab_size=VOCAB_SIZE,
        steps_in_flight=steps_in_flight,
    )
