"""ModelRunner: a batch in, tokens out. The RunnerBackend for real models.

A step is: forget and take sequences, pack the batch, run the layers, logits for the rows that
sample, one token each. Everything that differs between devices is behind `Ops`, `device.py` and,
where a device has a queue of its own, `DeviceSteps`.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from triolet.config import EngineConfig, ModelConfig
from triolet.errors import ConfigError, InvalidRequest, RequestFailed
from triolet.grammar.matcher import GrammarCompiler
from triolet.messages.runner_to_scheduler import (
    BatchResult,
    PromptLogprobs,
    RowError,
    RunnerInfo,
)
from triolet.messages.scheduler_to_runner import ScheduledBatch, ScheduledSequence, SequenceState
from triolet.model_source.facts import ModelFacts
from triolet.models.causal_lm import CausalLM
from triolet.models.loader import load_model
from triolet.runner import cuda_runner, device as devices, kv_tensors, loading
from triolet.runner.backend import Progress
from triolet.runner.cuda_device import DeviceQueue, Event, open_queue
from triolet.runner.cuda_runner import DeviceSteps
from triolet.runner.input_batch import (
    InputBatch,
    StepArrays,
    build_input_batch,
    pack_step,
    to_device,
)
from triolet.runner.kv_layout import KVPlan, plan_kv_cache
from triolet.runner.kv_tensors import KVTensors
from triolet.runner.logit_edits import check_ids
from triolet.runner.logits_processors import load_logits_processors
from triolet.runner.prompt_logprobs import score_prompts
from triolet.runner.sampler import PendingSample, SampledRows, Sampler, reads_output
from triolet.runner.sequence_table import RunningSequence, SequenceTable
from triolet.runner.warm_up import warm_up_batches
from triolet.sampling_params import SamplingParams
from triolet_kernels.ops import Ops

LoadModel = Callable[[ModelFacts, Ops, ModelConfig, Progress], CausalLM]

OpenQueue = Callable[[torch.device], DeviceQueue | None]


@attrs.frozen
class _PendingStep:
    """A step that was launched.

    Attributes:
        batch: As it came.
        started_s: When, on the clock of time.perf_counter.
        sample: Tokens being drawn, None if no row samples.
        prompt_logprobs: Scores of prompt tokens.
        errors: Sequences that could not be run.
        done: When a device has computed it; None if it was computed at once.
    """

    batch: ScheduledBatch
    started_s: float
    sample: PendingSample | None
    prompt_logprobs: list[PromptLogprobs]
    errors: list[RowError]
    done: Event | None


@attrs.frozen
class _Loaded:
    """What exists between load and close."""

    ops: Ops
    model: CausalLM
    kv: KVTensors
    num_blocks: int
    block_size: int
    vocab_size: int
    sampler: Sampler
    table: SequenceTable
    grammars: GrammarCompiler | None
    device_steps: DeviceSteps | None

    @property
    def steps_in_flight(self) -> int:
        """1 where the next batch needs the tokens of this one in the table of sequences."""
        return 1 if self.device_steps is None else cuda_runner.STEPS_IN_FLIGHT


class ModelRunner:
    """Computes batches of one model on one device.

    Args:
        config: The engine's configuration.
        facts: The model.
        load: Makes the model; tests bring their own.
        queue: Opens the queue of a device that has one; tests bring their own.
    """

    def __init__(
        self,
        config: EngineConfig,
        facts: ModelFacts,
        *,
        load: LoadModel = load_model,
        queue: OpenQueue = open_queue,
    ) -> None:
        self._config = config
        self._facts = facts
        self._load_model = load
        self._open_queue = queue
        self._loaded: _Loaded | None = None
        self._in_flight: deque[_PendingStep | BatchResult] = deque()

    def load(self, progress: Progress, num_blocks: int | None = None) -> RunnerInfo:
        """See `RunnerBackend.load`."""
        config = self._config
        device = devices.choose_device(config.runner.device)
        dtype = devices.choose_dtype(config.model.dtype, device, config.runner)
        kv_tensors.check_kv_dtype(config.cache, dtype)
        threads = devices.choose_threads(device, dtype, config.runner)
        ops = devices.choose_ops(config, device, dtype, threads)
        devices.keep_torch_single_threaded(ops)
        processors = load_logits_processors(config.runner.logits_processors)
        with torch.inference_mode():
            progress(f"loading {self._facts.name}")
            model = self._load_model(self._facts, ops, config.model, progress)
            wanted = loading.wanted_model_len(model, self._facts, config)
            layout = kv_tensors.layout_of(model.attention, wanted)
            block_size = config.cache.block_size
            block_bytes = kv_tensors.block_bytes(layout, model.attention, ops, block_size)
            queue = self._open_queue(device)
            if num_blocks is None:
                num_blocks = loading.count_blocks(
                    queue, model, ops, layout, block_bytes, wanted, config, progress
                )
            plan = plan_kv_cache(
                layout,
                num_blocks=num_blocks,
                block_size=block_size,
                max_model_len=wanted,
                max_num_seqs=config.scheduler.max_num_seqs,
                max_step_tokens=config.scheduler.max_num_batched_tokens,
            )
            progress(f"allocating a KV cache of {plan.num_blocks * block_bytes >> 20} MiB")
            # One block more for a queue: rows that fill up a captured step write to it.
            held_blocks = plan.num_blocks + (queue is not None)
            kv = kv_tensors.allocate(layout, model.attention, ops, held_blocks, block_size)
            progress("preparing grammars")
            grammars = loading.load_grammars(self._facts)
            vocab_size = min(self._facts.vocab_size, model.vocab_size)
            steps = None
            if queue is not None:
                steps = DeviceSteps(queue, device, config.scheduler.max_num_seqs)
            self._loaded = _Loaded(
                ops=ops,
                model=model,
                kv=kv,
                num_blocks=plan.num_blocks,
                block_size=block_size,
                vocab_size=vocab_size,
                sampler=Sampler(ops, vocab_size, processors),
                table=SequenceTable(len(layout.groups)),
                grammars=grammars,
                device_steps=steps,
            )
        progress("warming up")
        self._warm_up(plan)
        self._capture(plan, progress)
        info = RunnerInfo(
            num_blocks=plan.num_blocks,
            block_size=block_size,
            groups=layout.groups,
            block_bytes=block_bytes,
            max_model_len=plan.max_model_len,
            vocab_size=vocab_size,
            steps_in_flight=self._loaded.steps_in_flight,
            batch_invariant=model.batch_invariant,
            device=str(device),
            dtype=str(dtype).removeprefix("torch."),
            threads=threads,
        )
        description = loading.describe(info, model, wanted, config.model.quantization)
        return attrs.evolve(info, description=description)

    def launch(self, batch: ScheduledBatch) -> None:
        """See `RunnerBackend.launch`."""
        assert len(self._in_flight) < self._require().steps_in_flight, "too many steps in flight"
        started_s = time.perf_counter()
        try:
            with torch.inference_mode():
                step = self._launch(batch, started_s)
        except torch.OutOfMemoryError as error:
            raise RuntimeError(
                f"out of device memory in a step of {batch.num_tokens} tokens and "
                f"{len(batch.scheduled)} sequences: {error}; lower gpu_memory_utilization or "
                "max_num_batched_tokens"
            ) from error
        self._in_flight.append(step)

    def collect(self) -> BatchResult:
        """See `RunnerBackend.collect`."""
        step = self._in_flight.popleft()
        return step if isinstance(step, BatchResult) else self._finish(step)

    def _finish(self, step: _PendingStep) -> BatchResult:
        """Wait for a step and take its tokens."""
        loaded = self._require()
        if step.done is not None:
            step.done.wait()
        rows = SampledRows([], [], [], [])
        if step.sample is not None:
            rows = loaded.sampler.collect(step.sample)
            if loaded.device_steps is not None:
                for sequence in step.sample.sequences:
                    sequence.num_pending -= 1
        errors = list(step.errors)
        errors += [_row_error(s, RequestFailed.code, text) for s, text in rows.errors]
        for sequence, token_id in zip(rows.sequences, rows.token_ids, strict=True):
            if loaded.table.holds(sequence):  # it may have ended since
                self._append(sequence, token_id)
        return BatchResult(
            incarnation=step.batch.incarnation,
            step=step.batch.step,
            sequence_ids=[s.state.sequence_id for s in rows.sequences],
            token_ids=rows.token_ids,
            logprobs=rows.logprobs,
            prompt_logprobs=step.prompt_logprobs,
            errors=errors,
            elapsed_s=time.perf_counter() - step.started_s,
        )

    def close(self) -> None:
        """See `RunnerBackend.close`."""
        if self._loaded is None:
            return
        steps = self._loaded.device_steps
        self._loaded = None
        self._in_flight.clear()
        gc.collect()  # modules and their hooks refer to each other in circles
        if steps is not None:
            steps.close()

    def check_integrity(self) -> None:
        """Assert the invariants of what is kept between steps."""
        self._require().table.check_integrity()

    def _require(self) -> _Loaded:
        assert self._loaded is not None, "the runner is not loaded, or closed"
        return self._loaded

    def _launch(self, batch: ScheduledBatch, started_s: float) -> _PendingStep:
        """One step up to the tokens."""
        loaded = self._require()
        for sequence_id in batch.ended:
            loaded.table.remove(sequence_id)
        for state in batch.new:
            self._add(state)
        for scheduled in batch.scheduled:
            loaded.table.append_blocks(scheduled)
        if not batch.scheduled:
            return _PendingStep(batch, started_s, None, [], [], None)
        self._settle_where_read(batch.scheduled)
        step = pack_step(batch.scheduled, loaded.table, loaded.block_size, loaded.num_blocks)
        scores: list[PromptLogprobs] = []
        device_steps = loaded.device_steps
        sample: PendingSample | None
        if device_steps is not None and device_steps.can_replay(step, batch.scheduled):
            sample = device_steps.replay(step, loaded.table, loaded.sampler)
        else:
            sample, scores = self._compute(step, batch.scheduled)
        errors = [
            _row_error(s, s.failure.code, s.failure.message)
            for s in step.sequences
            if s.failure is not None
        ]
        done = None
        if device_steps is not None:
            if sample is not None:
                sample = device_steps.send(sample, loaded.table)
            done = device_steps.record()
        return _PendingStep(batch, started_s, sample, scores, errors, done)

    def _settle_where_read(self, scheduled: Sequence[ScheduledSequence]) -> None:
        """Take the tokens of steps in flight if a row of the next one reads them."""
        table = self._require().table
        held = [table[row.sequence_id] for row in scheduled]
        if any(sequence.num_pending and reads_output(sequence) for sequence in held):
            for i, step in enumerate(self._in_flight):
                if isinstance(step, _PendingStep):
                    self._in_flight[i] = self._finish(step)

    def _compute(
        self, step: StepArrays, scheduled: list[ScheduledSequence]
    ) -> tuple[PendingSample | None, list[PromptLogprobs]]:
        """One step, operation by operation."""
        loaded = self._require()
        sampled = None if loaded.device_steps is None else loaded.device_steps.sampled
        packed = build_input_batch(step, loaded.ops.device, sampled)
        hidden = loaded.model.forward(packed.token_ids, loaded.kv.layers(packed.attention))
        scores = score_prompts(
            hidden,
            packed,
            scheduled,
            loaded.table,
            loaded.model,
            loaded.ops,
            loaded.vocab_size,
        )
        return self._launch_sample(hidden, packed, scheduled), scores

    def _launch_sample(
        self, hidden: Tensor, packed: InputBatch, scheduled: list[ScheduledSequence]
    ) -> PendingSample | None:
        """Logits and tokens of the rows that sample; None if there are none."""
        loaded = self._require()
        chosen = [
            i
            for i, (sequence, step) in enumerate(zip(packed.sequences, scheduled, strict=True))
            if step.samples and sequence.failure is None
        ]
        if not chosen:
            return None
        for i in chosen:
            end = scheduled[i].num_computed_tokens + scheduled[i].num_new_tokens
            assert end == packed.sequences[i].num_tokens_ahead, scheduled[i]
        if len(chosen) < len(hidden):
            rows = packed.last_rows[np.array(chosen, np.int64)]
            hidden = hidden[to_device(rows, hidden.device)]
        logits = loaded.model.logits(hidden)
        sampled = None if loaded.device_steps is None else loaded.device_steps.sampled
        sequences = [packed.sequences[i] for i in chosen]
        return loaded.sampler.launch(logits, sequences, loaded.table, sampled)

    def _add(self, state: SequenceState) -> None:
        """Take a sequence. One that cannot be run is kept, harmless, and failed by name."""
        loaded = self._require()
        try:
            check_ids(state, loaded.vocab_size, loaded.model.vocab_size)
        except InvalidRequest as error:
            harmless = attrs.evolve(
                state, token_ids=[0] * len(state.token_ids), sampling=SamplingParams(seed=0)
            )
            loaded.table.add(harmless).failure = error
            return
        sequence = loaded.table.add(state)
        structured = state.sampling.structured_outputs
        if structured is None:
            return
        if loaded.grammars is None:
            sequence.failure = RequestFailed(
                "this model has no tokenizer.json that structured outputs could use"
            )
            return
        try:
            output = state.token_ids[state.num_prompt_tokens :]
            sequence.matcher = loaded.grammars.matcher(structured, output)
        except (InvalidRequest, RequestFailed) as error:
            sequence.failure = error

    def _append(self, sequence: RunningSequence, token_id: int) -> None:
        """Append a sampled token to its sequence."""
        self._require().table.append_token(sequence, token_id)
        if sequence.matcher is not None:
            try:
                sequence.matcher.accept([token_id])
            except RequestFailed as error:
                # The token was allowed, so the output is right so far; what follows fails.
                sequence.failure = error

    def _capture(self, plan: KVPlan, progress: Progress) -> None:
        """Capture the decode step where the device can."""
        loaded = self._require()
        if loaded.device_steps is None or self._config.runner.enforce_eager:
            return
        with torch.inference_mode():
            loaded.device_steps.capture(
                loaded.model,
                loaded.ops,
                loaded.kv,
                progress,
                vocab_size=loaded.vocab_size,
                num_blocks=plan.num_blocks,
                block_size=loaded.block_size,
                max_model_len=plan.max_model_len,
            )

    def _warm_up(self, plan: KVPlan) -> None:
        """Run a prefill and a decode, so that the first request does not pay for what is lazy."""
        num_groups = len(self._require().kv.layout.groups)
        for batch in warm_up_batches(plan, num_groups, self._config):
            self.launch(batch)
            result = self.collect()
            if result.errors:
                raise ConfigError(f"the model does not compute: {result.errors[0].message}")


def _row_error(sequence: RunningSequence, code: str, message: str) -> RowError:
    return RowError(sequence.state.sequence_id, code, message)
