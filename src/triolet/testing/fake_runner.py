"""A deterministic model runner: its next token is a function of all the tokens before.

It computes no tensors, but it keeps a KV memory, block by block, and checks before every
token that the memory it is told to read holds exactly the tokens of that sequence. So every
fault of sharing, freeing, forking, preempting or resuming shows itself at once, as
`KVMismatch`, and not as a slightly different text.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from triolet.config import EngineConfig
from triolet.messages.runner_to_scheduler import (
    BatchResult,
    KVGroup,
    PromptLogprobs,
    RowError,
    RunnerInfo,
)
from triolet.messages.scheduler_to_runner import (
    ScheduledBatch,
    ScheduledSequence,
    SequenceState,
)
from triolet.model_source.facts import ModelFacts
from triolet.output import TokenLogprobs
from triolet.request import SequenceId
from triolet.runner.backend import Progress
from triolet.tokenizer.byte_tokenizer import ByteTokenizer

FIRST_TOKEN_ID = 32
"""Fake tokens are printable with the byte tokenizer, from the space on."""
LAST_TOKEN_ID = 127


def fake_facts(context_len: int = 512) -> ModelFacts:
    """Facts of a model that does not exist, for the byte tokenizer; `attrs.evolve` them."""
    tokenizer = ByteTokenizer(chat_template=None)  # only asked for its sizes
    return ModelFacts(
        name="fake",
        directory=Path("/nonexistent"),
        architecture="FakeForCausalLM",
        config={},
        vocab_size=tokenizer.vocab_size,
        context_len=context_len,
        eos_token_ids=tokenizer.eos_token_ids,
        generation={},
    )


class KVMismatch(AssertionError):
    """A sequence was told to read KV memory that does not hold its own tokens."""


def next_hash(before: int, token_id: int) -> int:
    """Hash of a sequence after one more token."""
    data = before.to_bytes(8, "little") + token_id.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def hash_tokens(token_ids: Sequence[int]) -> int:
    """Hash of a whole sequence."""
    value = 0
    for token_id in token_ids:
        value = next_hash(value, token_id)
    return value


def choose_token(state_hash: int, key: int, eos_token_id: int | None, eos_one_in: int) -> int:
    """The token that follows, given all tokens before (as a hash) and the sampling key."""
    value = next_hash(state_hash, key & (2**63 - 1))
    if eos_token_id is not None and eos_one_in and value % eos_one_in == 0:
        return eos_token_id
    return FIRST_TOKEN_ID + value // 7 % (LAST_TOKEN_ID - FIRST_TOKEN_ID)


def expected_tokens(
    prompt: Sequence[int],
    max_tokens: int,
    *,
    key: int = 0,
    eos_token_id: int | None = None,
    eos_one_in: int = 0,
) -> list[int]:
    """What a fake runner generates for a prompt, EOS included: the oracle of its tests."""
    state, output = hash_tokens(prompt), list[int]()
    while len(output) < max_tokens:
        token_id = choose_token(state, key, eos_token_id, eos_one_in)
        output.append(token_id)
        if token_id == eos_token_id:
            break
        state = next_hash(state, token_id)
    return output


def sampling_key(state: SequenceState) -> int:
    """What a sequence's tokens depend on besides its tokens: nothing when greedy."""
    if state.sampling.is_greedy:
        return 0
    assert state.sampling.seed is not None
    return next_hash(state.sampling.seed & (2**63 - 1), state.sample_index)


@attrs.define
class _Sequence:
    """The runner's copy of one sequence.

    `hashes[i]` is the hash of its first i tokens.
    """

    state: SequenceState
    token_ids: list[int]
    hashes: list[int]
    tables: list[list[int]]

    def append(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self.hashes.append(next_hash(self.hashes[-1], token_id))


class FakeRunner:
    """A `RunnerBackend` without a model.

    Args:
        config: Sizes; `kv_cache_tokens` sets the size of the pool.
        facts: The model; its EOS is what the fake model ends with.
        num_blocks: Size of the KV memory, when `kv_cache_tokens` is not set.
        groups: KV groups, as (layers, window).
        steps_in_flight: Batches it takes before it must be collected.
        eos_one_in: A token is EOS with this chance, one in so many; 0 is never.
        before_step: Called with each batch before it is computed; what it raises is the
            death of the runner.
        row_error: Asked for each sequence; a text fails that sequence alone.
    """

    def __init__(
        self,
        config: EngineConfig,
        facts: ModelFacts,
        *,
        num_blocks: int = 256,
        groups: Sequence[tuple[int, int | None]] = ((1, None),),
        steps_in_flight: int = 1,
        eos_one_in: int = 0,
        before_step: Callable[[ScheduledBatch], None] | None = None,
        row_error: Callable[[SequenceState], str | None] | None = None,
    ) -> None:
        self._config = config
        self._facts = facts
        self._block_size = config.cache.block_size
        if config.cache.kv_cache_tokens is not None:
            num_blocks = -(-config.cache.kv_cache_tokens // self._block_size) * len(groups)
        self._num_blocks = num_blocks
        self._groups = tuple(KVGroup(layers, window) for layers, window in groups)
        self._steps_in_flight = steps_in_flight
        self._eos_one_in = eos_one_in
        self._before_step = before_step
        self._row_error = row_error
        self._sequences: dict[SequenceId, _Sequence] = {}
        self._memory: dict[tuple[int, int], int] = {}
        self._launched: deque[BatchResult] = deque()
        self.closed = False

    def load(self, progress: Progress, num_blocks: int | None = None) -> RunnerInfo:
        """See `RunnerBackend.load`."""
        progress("loading nothing")
        self._num_blocks = self._num_blocks if num_blocks is None else num_blocks
        return RunnerInfo(
            num_blocks=self._num_blocks,
            block_size=self._block_size,
            groups=self._groups,
            block_bytes=1,
            max_model_len=self._config.model.max_model_len or self._facts.context_len,
            vocab_size=self._facts.vocab_size,
            steps_in_flight=self._steps_in_flight,
            batch_invariant=True,
            description="fake runner",
        )

    def launch(self, batch: ScheduledBatch) -> None:
        """See `RunnerBackend.launch`."""
        assert len(self._launched) < self._steps_in_flight
        if self._before_step is not None:
            self._before_step(batch)
        for sequence_id in batch.ended:
            self._sequences.pop(sequence_id, None)
        for state in batch.new:
            self._take_up(state)
        result = BatchResult(batch.incarnation, batch.step, [], [])
        for scheduled in batch.scheduled:
            self._compute(scheduled, result)
        self._launched.append(result)

    def collect(self) -> BatchResult:
        """See `RunnerBackend.collect`."""
        return self._launched.popleft()

    def close(self) -> None:
        """See `RunnerBackend.close`."""
        self.closed = True
        self._sequences.clear()
        self._memory.clear()

    def _take_up(self, state: SequenceState) -> None:
        hashes = [0]
        for token_id in state.token_ids:
            hashes.append(next_hash(hashes[-1], token_id))
        self._sequences[state.sequence_id] = _Sequence(
            state, list(state.token_ids), hashes, [[] for _ in self._groups]
        )

    def _compute(self, scheduled: ScheduledSequence, result: BatchResult) -> None:
        sequence = self._sequences[scheduled.sequence_id]
        start, end = (
            scheduled.num_computed_tokens,
            (scheduled.num_computed_tokens + scheduled.num_new_tokens),
        )
        assert start < end <= len(sequence.token_ids), (start, end, len(sequence.token_ids))
        for table, block_ids in zip(sequence.tables, scheduled.new_block_ids, strict=True):
            table.extend(block_ids)
        self._write_and_read(sequence, start, end)
        self._score_prompt(sequence, start, end, result)
        assert scheduled.samples == (end == len(sequence.token_ids))
        if not scheduled.samples:
            return
        error = None if self._row_error is None else self._row_error(sequence.state)
        if error is not None:
            result.errors.append(RowError(scheduled.sequence_id, "request_failed", error))
            return
        eos = sequence.state.eos_token_ids
        token_id = choose_token(
            sequence.hashes[-1],
            sampling_key(sequence.state),
            eos[0] if eos else None,
            self._eos_one_in,
        )
        result.sequence_ids.append(scheduled.sequence_id)
        result.token_ids.append(token_id)
        wanted = sequence.state.sampling.logprobs
        result.logprobs.append(
            None if wanted is None else _logprobs(token_id, sequence.hashes[-1], wanted)
        )
        sequence.append(token_id)

    def _write_and_read(self, sequence: _Sequence, start: int, end: int) -> None:
        """Write the new positions, then check everything the last one attends to."""
        size = self._block_size
        for group, table in zip(self._groups, sequence.tables, strict=True):
            for position in range(start, end):
                block = table[position // size]
                assert 0 <= block < self._num_blocks, block
                self._memory[block, position % size] = sequence.hashes[position + 1]
            first = 0 if group.window is None else max(0, start - group.window + 1)
            for position in range(first, end):
                found = self._memory.get((table[position // size], position % size))
                if found != sequence.hashes[position + 1]:
                    raise KVMismatch(
                        f"sequence {sequence.state.sequence_id} reads block "
                        f"{table[position // size]} at position {position}, which holds another "
                        "token or history"
                    )

    def _score_prompt(self, sequence: _Sequence, start: int, end: int, result: BatchResult) -> None:
        state = sequence.state
        wanted = state.sampling.prompt_logprobs
        first, last = max(1, start + 1), min(end, state.num_prompt_tokens - 1)
        if wanted is None or first > last:
            return
        result.prompt_logprobs.append(
            PromptLogprobs(
                state.sequence_id,
                first,
                [
                    _logprobs(sequence.token_ids[i], sequence.hashes[i], wanted)
                    for i in range(first, last + 1)
                ],
            )
        )


def _logprobs(token_id: int, state_hash: int, wanted: int) -> TokenLogprobs:
    """Made-up, but reproducible and shaped like the real ones."""
    logprob = -((state_hash % 1000) / 1000) - 0.001
    top = tuple((token_id + i, logprob - i) for i in range(wanted))
    return TokenLogprobs(token_id, logprob, 1, top)
