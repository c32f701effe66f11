"""A scheduler that keeps several steps in flight, for runners of devices with a queue.

Unlike `BatchDriver` it plans a step before the tokens of the one before are known, as the real
scheduler does: a sequence whose token is pending is scheduled with one token that nobody knows.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

import attrs

from triolet.messages.runner_to_scheduler import BatchResult, RunnerInfo
from triolet.messages.scheduler_to_runner import ScheduledBatch, ScheduledSequence, SequenceState
from triolet.request import SequenceId
from triolet.runner.backend import RunnerBackend
from triolet.sampling_params import SamplingParams


@attrs.define
class _Sequence:
    state: SequenceState
    tokens: list[int]
    wanted: int
    tables: list[list[int]]
    computed: int = 0
    pending: int = 0
    is_sent: bool = False
    is_ended: bool = False


class PipelineDriver:
    """Runs sequences to their wanted number of tokens with `info.steps_in_flight` in flight.

    Args:
        backend: Loaded.
        info: What its `load` returned.
        seed: Of the order of blocks and of the choices of each step.
    """

    def __init__(self, backend: RunnerBackend, info: RunnerInfo, seed: int = 0) -> None:
        self.backend = backend
        self.info = info
        self.errors: dict[int, str] = {}
        self.results: list[BatchResult] = []
        self.sequences: dict[int, _Sequence] = {}
        self._rng = random.Random(seed)
        self._free = list(range(info.num_blocks))
        self._rng.shuffle(self._free)
        self._in_flight: deque[list[tuple[int, _Sequence, bool]]] = deque()
        self._ended: list[SequenceId] = []
        self._step = 0

    def add(
        self,
        sequence_id: int,
        prompt: Sequence[int],
        sampling: SamplingParams,
        wanted: int,
        output: Sequence[int] = (),
    ) -> None:
        """A new sequence that ends after `wanted` output tokens."""
        tokens = [*prompt, *output]
        state = SequenceState(SequenceId(sequence_id), list(tokens), len(prompt), sampling, 0, (0,))
        tables: list[list[int]] = [[] for _ in self.info.groups]
        self.sequences[sequence_id] = _Sequence(state, tokens, wanted, tables)

    def end(self, sequence_id: int) -> None:
        """End a sequence now, steps in flight or not; its blocks are given away at once."""
        sequence = self.sequences[sequence_id]
        sequence.is_ended = True
        for table in sequence.tables:
            self._free += table
        if sequence.is_sent:
            self._ended.append(SequenceId(sequence_id))

    def output(self, sequence_id: int) -> list[int]:
        """Tokens sampled so far."""
        sequence = self.sequences[sequence_id]
        return sequence.tokens[sequence.state.num_prompt_tokens :]

    def launch(self, chunk: int = 1000, chance: float = 1.0) -> bool:
        """Plan and launch a step of what can run; False if nothing can.

        Args:
            chunk: Tokens of a prompt in one step.
            chance: That a sequence takes part.
        """
        new: list[SequenceState] = []
        scheduled: list[ScheduledSequence] = []
        rows: list[tuple[int, _Sequence, bool]] = []
        for key, sequence in self.sequences.items():
            known = len(sequence.tokens) + sequence.pending
            if sequence.is_ended or known == sequence.computed or self._rng.random() > chance:
                continue
            if known - sequence.state.num_prompt_tokens >= sequence.wanted:
                continue
            end = min(known, sequence.computed + chunk)
            if not sequence.is_sent:
                new.append(sequence.state)
            blocks = self._grow(sequence, end)
            samples = end == known
            scheduled.append(
                ScheduledSequence(
                    SequenceId(key), sequence.computed, end - sequence.computed, blocks, samples
                )
            )
            sequence.is_sent = True
            sequence.computed = end
            sequence.pending += samples
            rows.append((key, sequence, samples))
        if not rows:
            return False
        self._step += 1
        self.backend.launch(ScheduledBatch(1, self._step, new, scheduled, self._ended))
        self._ended = []
        self._in_flight.append(rows)
        return True

    def collect(self) -> None:
        """Take the oldest step."""
        rows = self._in_flight.popleft()
        result = self.backend.collect()
        self.results.append(result)
        sampled = dict(zip(result.sequence_ids, result.token_ids, strict=True))
        failed = {int(error.sequence_id): error.message for error in result.errors}
        for key, sequence, samples in rows:
            sequence.pending -= samples
            if sequence.is_ended:
                continue
            if key in failed:
                self.errors[key] = failed[key]
                self.end(key)
            elif samples:
                sequence.tokens.append(sampled[SequenceId(key)])
                if len(self.output(key)) >= sequence.wanted:
                    self.end(key)

    def run(self, chunk: int = 1000, chance: float = 1.0) -> None:
        """Go on until all have ended."""
        while any(not s.is_ended for s in self.sequences.values()):
            while len(self._in_flight) < self.info.steps_in_flight:
                if not self.launch(chunk, chance):
                    break
            if self._in_flight:
                self.collect()
        while self._in_flight:
            self.collect()

    def _grow(self, sequence: _Sequence, num_tokens: int) -> tuple[list[int], ...]:
        """New block ids per group for a sequence of that length."""
        needed = -(-num_tokens // self.info.block_size)
        grown: list[list[int]] = []
        for table in sequence.tables:
            new = [self._free.pop() for _ in range(needed - len(table))]
            table += new
            grown.append(new)
        return tuple(grown)
