"""Builds batches for a ModelRunner by hand: a scheduler that does what a test says."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from triolet.messages.runner_to_scheduler import BatchResult, RunnerInfo
from triolet.messages.scheduler_to_runner import ScheduledBatch, ScheduledSequence, SequenceState
from triolet.request import SequenceId
from triolet.runner.backend import RunnerBackend
from triolet.sampling_params import SamplingParams

EOS = 0


class BatchDriver:
    """Runs sequences through a backend; blocks are taken in a scrambled order.

    Args:
        backend: Loaded.
        info: What its `load` returned.
        seed: Of the order of blocks.
    """

    def __init__(self, backend: RunnerBackend, info: RunnerInfo, seed: int = 0) -> None:
        self.backend = backend
        self.info = info
        self.tokens: dict[SequenceId, list[int]] = {}
        self.results: list[BatchResult] = []
        self._states: dict[SequenceId, SequenceState] = {}
        self._computed: dict[SequenceId, int] = {}
        self._tables: dict[SequenceId, list[list[int]]] = {}
        self._sent: dict[SequenceId, int] = {}
        self._unsent: set[SequenceId] = set()
        self._ended: list[SequenceId] = []
        self._free = list(range(info.num_blocks))
        random.Random(seed).shuffle(self._free)
        self._step = 0

    def add(
        self,
        sequence_id: int,
        prompt: Sequence[int],
        sampling: SamplingParams,
        output: Sequence[int] = (),
        sample_index: int = 0,
    ) -> None:
        """A new sequence, with output if it is a resume."""
        name = SequenceId(sequence_id)
        self.tokens[name] = [*prompt, *output]
        self._states[name] = SequenceState(
            name, list(self.tokens[name]), len(prompt), sampling, sample_index, (EOS,)
        )
        self._computed[name] = 0
        self._tables[name] = [[] for _ in self.info.groups]
        self._sent[name] = 0
        self._unsent.add(name)

    def share_prefix(self, sequence_id: int, source: int, num_tokens: int, lost: int) -> None:
        """Give a new sequence cached tokens of another, as a hit in the prefix cache does.

        Args:
            sequence_id: Added and not yet run.
            source: Whose blocks it reads.
            num_tokens: A multiple of the block size.
            lost: Leading blocks whose ids are wrong: they have left every window.
        """
        name, owner = SequenceId(sequence_id), SequenceId(source)
        num_blocks = num_tokens // self.info.block_size
        for group, table in enumerate(self._tables[owner]):
            self._tables[name][group] = [table[-1]] * lost + table[lost:num_blocks]
        self._computed[name] = num_tokens

    def preempt(self, sequence_id: int) -> None:
        """Throw the KV of a sequence away; it is sent whole the next time."""
        name = SequenceId(sequence_id)
        state = self._states[name]
        output = self.output(sequence_id)
        self.end(sequence_id)
        self._ended.remove(name)  # a state sent again replaces the one that is held
        prompt = state.token_ids[: state.num_prompt_tokens]
        self.add(sequence_id, prompt, state.sampling, output, state.sample_index)

    def end(self, sequence_id: int) -> None:
        """Forget a sequence and give its blocks back."""
        name = SequenceId(sequence_id)
        for table in self._tables.pop(name):
            self._free += table
        self._ended.append(name)

    def step(self, chunks: Mapping[int, int]) -> BatchResult:
        """Run one batch: sequence id -> tokens to compute, cut to those known."""
        new: list[SequenceState] = []
        scheduled: list[ScheduledSequence] = []
        for key, chunk in chunks.items():
            name = SequenceId(key)
            known, computed = len(self.tokens[name]), self._computed[name]
            end = min(known, computed + chunk)
            if name in self._unsent:
                new.append(self._states[name])
                self._unsent.discard(name)
            blocks = self._take_blocks(name, end)
            scheduled.append(
                ScheduledSequence(name, computed, end - computed, blocks, end == known)
            )
            self._computed[name] = end
        self._step += 1
        self.backend.launch(ScheduledBatch(1, self._step, new, scheduled, self._ended))
        self._ended = []
        result = self.backend.collect()
        assert result.step == self._step
        for name, token_id in zip(result.sequence_ids, result.token_ids, strict=True):
            self.tokens[name].append(token_id)
        self.results.append(result)
        return result

    def output(self, sequence_id: int) -> list[int]:
        """Tokens sampled so far."""
        name = SequenceId(sequence_id)
        return self.tokens[name][self._states[name].num_prompt_tokens :]

    def run(self, num_output_tokens: int, chunk: int = 1000) -> None:
        """Step everything together until all have that many output tokens."""
        while pending := {
            int(name): chunk
            for name in self._tables
            if len(self.output(int(name))) < num_output_tokens
        }:
            self.step(pending)

    def _take_blocks(self, name: SequenceId, num_tokens: int) -> tuple[list[int], ...]:
        """Block ids per group that were not sent yet, for a sequence of that length."""
        needed = -(-num_tokens // self.info.block_size)
        for table in self._tables[name]:
            table += [self._free.pop() for _ in range(needed - len(table))]
        sent, self._sent[name] = self._sent[name], max(needed, self._sent[name])
        return tuple(table[sent:] for table in self._tables[name])
