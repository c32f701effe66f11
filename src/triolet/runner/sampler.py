"""Logits -> one token per row, with log-probabilities.

Log-probabilities are those of the raw logits (as OpenAI and vLLM report them); then
`logits_processors.py` edits and bans; then `Ops.sample` draws: temperature, top-k, top-p, min-p,
exactly. The uniform number of a row comes from `keyed_random`, so nothing here has state.

`launch` queues work on a device, `collect` waits for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet.errors import RequestFailed
from triolet.output import LOGPROB_FLOOR, TokenLogprobs
from triolet.runner.input_batch import to_device
from triolet.runner.keyed_random import uniform
from triolet.runner.logits_processors import (
    LogitsProcessor,
    add_bias,
    ban_tokens,
    penalties_of,
    run_processor,
)
from triolet.runner.sequence_table import RunningSequence, SequenceTable
from triolet_kernels.ops import Ops, SamplingBatch

_UNSOUND = "the model's logits are not numbers"

TopLogprobs = tuple[Tensor, Tensor, Tensor, Tensor]
"""What `Ops.top_logprobs` returns."""


@dataclasses.dataclass(frozen=True, slots=True)
class PendingSample:
    """Tokens that a device may still be drawing.

    Attributes:
        sequences: The sequence of each row.
        tokens: int64 [R].
        chosen: float32 [R], logit of each token after all edits; NaN where there is none.
        errors: Row to what went wrong with it; its token means nothing.
        logprob_rows: Rows that want log-probabilities.
        logprobs: Of these rows, at their tokens and at the most likely ones.
    """

    sequences: list[RunningSequence]
    tokens: Tensor
    chosen: Tensor
    errors: dict[int, str]
    logprob_rows: list[int]
    logprobs: TopLogprobs | None

    def map(self, function: Callable[[Tensor], Tensor]) -> PendingSample:
        """The same with another tensor for each of its tensors."""
        logprobs = self.logprobs
        if logprobs is not None:
            a, b, c, d = logprobs
            logprobs = (function(a), function(b), function(c), function(d))
        return dataclasses.replace(
            self,
            tokens=function(self.tokens),
            chosen=function(self.chosen),
            logprobs=logprobs,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class SamplingArrays:
    """Sampling parameters of R rows on the host; see `SamplingBatch`.

    Attributes:
        temperature: float32 [R].
        top_k: int32 [R].
        top_p: float32 [R].
        min_p: float32 [R].
        uniform: float64 [R].
    """

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    uniform: NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class SampledRows:
    """Tokens of the rows that could be sampled, in order, and the others' faults."""

    sequences: list[RunningSequence]
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    errors: list[tuple[RunningSequence, str]]


class Sampler:
    """Draws tokens.

    Args:
        ops: The kernels.
        vocab_size: Ids below this may be sampled; the head may have more rows.
        processors: The registered logits processors.
    """

    def __init__(
        self, ops: Ops, vocab_size: int, processors: Mapping[str, LogitsProcessor]
    ) -> None:
        self._ops = ops
        self._vocab_size = vocab_size
        self._processors = processors

    def launch(
        self,
        logits: Tensor,
        sequences: list[RunningSequence],
        table: SequenceTable,
        sampled: Tensor | None = None,
    ) -> PendingSample:
        """Edit the logits in place and start drawing.

        Args:
            logits: float32 [R, V], contiguous; row i belongs to `sequences[i]`.
            sequences: At least one.
            table: Holds the sampling parameters.
            sampled: int64, on the device, tokens of the step before if it may be in flight.
        """
        assert logits.shape[0] == len(sequences) > 0, logits.shape
        assert logits.dtype == torch.float32, logits.dtype
        mask_padding(logits, self._vocab_size)
        wanting = [i for i, s in enumerate(sequences) if s.state.sampling.logprobs is not None]
        rows = to_device(np.array(wanting, np.int64), logits.device)
        raw = logits[rows] if wanting else None
        errors = self._edit(logits, sequences, table, sampled)
        tokens, chosen = draw(self._ops, logits, self._batch(sequences, table))
        logprobs = None
        if raw is not None:
            zero_unsound_rows(raw)
            k = max(sequences[i].state.sampling.logprobs or 0 for i in wanting)
            logprobs = self._ops.top_logprobs(raw, tokens[rows], min(k, self._vocab_size))
        return PendingSample(
            sequences=sequences,
            tokens=tokens,
            chosen=chosen,
            errors=errors,
            logprob_rows=wanting,
            logprobs=logprobs,
        )

    def collect(self, pending: PendingSample) -> SampledRows:
        """Wait for the tokens. Rows whose logits were not numbers become errors."""
        tokens = pending.tokens.tolist()
        errors = dict(pending.errors)
        for row, logit in enumerate(pending.chosen.tolist()):
            if not math.isfinite(logit) and row not in errors:
                errors[row] = _UNSOUND
        rows = [row for row in range(len(tokens)) if row not in errors]
        logprobs: dict[int, TokenLogprobs] = {}
        if pending.logprobs is not None:
            sampling = [pending.sequences[row].state.sampling for row in pending.logprob_rows]
            entries = token_logprobs(
                pending.tokens[pending.logprob_rows].tolist(),
                pending.logprobs,
                [parameters.logprobs or 0 for parameters in sampling],
            )
            logprobs = dict(zip(pending.logprob_rows, entries, strict=True))
        return SampledRows(
            sequences=[pending.sequences[row] for row in rows],
            token_ids=[tokens[row] for row in rows],
            logprobs=[logprobs.get(row) for row in rows],
            errors=[(pending.sequences[row], errors[row]) for row in sorted(errors)],
        )

    def _edit(
        self,
        logits: Tensor,
        sequences: list[RunningSequence],
        table: SequenceTable,
        sampled: Tensor | None,
    ) -> dict[int, str]:
        """Edit the rows that ask for it.

        Returns:
            Rows that failed and why.
        """
        errors: dict[int, str] = {}
        edited = [(row, s.edits) for row, s in enumerate(sequences) if s.edits is not None]
        add_bias(logits, edited)
        pending = None
        if sampled is not None and any(edits.seen is not None for _, edits in edited):
            pending = pending_tokens(sequences, sampled)
        penalties = penalties_of(edited, logits.device, pending)
        if penalties is not None:
            self._ops.penalize(logits, penalties)
        for row, edits in edited:
            if edits.sampling.logits_processors:
                try:
                    self._process(logits[row, : self._vocab_size], sequences[row], table)
                except RequestFailed as error:
                    errors[row] = error.message
        banned = ban_tokens(logits, edited)
        banned += self._apply_grammars(logits, sequences, errors)
        for row in banned:
            if row not in errors and float(logits[row].max()) == -math.inf:
                errors[row] = (
                    "no token is left to sample: grammar, allowed_token_ids, bad_words, "
                    "min_tokens and logits processors together exclude every one"
                )
        return errors

    def _apply_grammars(
        self, logits: Tensor, sequences: list[RunningSequence], errors: dict[int, str]
    ) -> list[int]:
        """Ban what grammars do not allow next, in place; rows that cannot go on are errors.

        Returns:
            The rows with a grammar.
        """
        masks: dict[int, NDArray[np.uint8]] = {}
        for row, sequence in enumerate(sequences):
            if sequence.matcher is not None:
                try:
                    masks[row] = np.frombuffer(sequence.matcher.mask(), np.uint8)
                except RequestFailed as error:
                    errors[row] = error.message
        if masks:
            rows = to_device(np.array(list(masks), np.int64), logits.device)
            self._ops.ban(logits, rows, to_device(np.stack(list(masks.values())), logits.device))
        return list(masks)

    def _process(self, row: Tensor, sequence: RunningSequence, table: SequenceTable) -> None:
        """Run the registered processors of one row, in place."""
        tokens = table.token_ids(sequence)
        start = sequence.state.num_prompt_tokens
        prompt, output = tokens[:start], tokens[start:]
        for name in sequence.state.sampling.logits_processors:
            processor = self._processors.get(name)
            if processor is None:
                raise RequestFailed(f"logits processor {name!r} is not registered")
            row.copy_(run_processor(name, processor, list(prompt), list(output), row))

    def _batch(self, sequences: list[RunningSequence], table: SequenceTable) -> SamplingBatch:
        """The parameters of the rows, as the kernel wants them."""
        device = self._ops.device
        arrays = sampling_arrays(sequences, table)
        return SamplingBatch(
            temperature=to_device(arrays.temperature, device),
            top_k=to_device(arrays.top_k, device),
            top_p=to_device(arrays.top_p, device),
            min_p=to_device(arrays.min_p, device),
            uniform=to_device(arrays.uniform, device),
            all_greedy=not arrays.temperature.any(),
        )


def reads_output(sequence: RunningSequence) -> bool:
    """Whether sampling the next token looks at those before it, which must be known then."""
    has_such_edits = sequence.edits is not None and sequence.edits.reads_output
    return has_such_edits or sequence.matcher is not None


def pending_tokens(sequences: Sequence[RunningSequence], sampled: Tensor) -> Tensor:
    """int64 [R], the token of each sequence that a step in flight samples, or -1.

    Args:
        sequences: The rows.
        sampled: int64, tokens of the step before, on the device.
    """
    places = [s.pending_row if s.num_pending else -1 for s in sequences]
    place = to_device(np.array(places, np.int64), sampled.device)
    return torch.where(place >= 0, sampled[place.clamp(min=0)], -1)


def is_plain(sequence: RunningSequence) -> bool:
    """Whether a token is drawn from the logits as they are, and nothing else is wanted."""
    is_free = sequence.edits is None and sequence.matcher is None
    return is_free and sequence.state.sampling.logprobs is None


def sampling_arrays(sequences: Sequence[RunningSequence], table: SequenceTable) -> SamplingArrays:
    """The parameters of the next token of each sequence, steps in flight taken into account."""
    rows = np.array([s.row for s in sequences], np.int64)
    temperature = table.temperature[rows]
    numbers = np.zeros(len(rows), np.float64)
    for i in np.flatnonzero(temperature).tolist():
        numbers[i] = uniform(sequences[i].random_key, sequences[i].num_tokens_ahead)
    return SamplingArrays(
        temperature, table.top_k[rows], table.top_p[rows], table.min_p[rows], numbers
    )


def draw(ops: Ops, logits: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
    """Draw a token per row of logits [R, V]. On a GPU nothing here waits.

    Returns:
        Tokens int64 [R], and their logits float32 [R]: NaN where there is no token, for a row's
        logits are not numbers (the token is 0 then, so that it can be looked up).
    """
    # Greedy rows need no look of their own: the logit they chose shows it.
    if batch.all_greedy:
        unsound, tokens = None, ops.sample(logits, batch)
    elif logits.device.type == "cpu":
        unsound, tokens = _draw_on_cpu(ops, logits, batch)
    else:
        unsound = zero_unsound_rows(logits)
        tokens = ops.sample(logits, batch)
    none = tokens < 0  # how kernels say that a row has no best logit
    if unsound is not None:
        none = none | unsound
    tokens = tokens.clamp(min=0)
    chosen = logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return tokens, chosen.masked_fill(none, math.nan)


def _draw_on_cpu(ops: Ops, logits: Tensor, batch: SamplingBatch) -> tuple[Tensor | None, Tensor]:
    """Draw, and once more without them if there are unsound rows; bool [R], which, or None.

    Kernels on the CPU look at every logit anyway and raise for a row without a best one, so a
    pass over all of them in advance would only be paid for by those that are sound.
    """
    try:
        return None, ops.sample(logits, batch)
    except ValueError:
        unsound = zero_unsound_rows(logits)
        return unsound, ops.sample(logits, batch)


def mask_padding(logits: Tensor, vocab_size: int) -> None:
    """Rows of the head beyond the vocabulary are no tokens: they get no probability, in place.

    Args:
        logits: float32 [R, V], V >= vocab_size.
        vocab_size: Ids below this are tokens.
    """
    if logits.shape[1] > vocab_size:
        logits[:, vocab_size:] = -math.inf


def zero_unsound_rows(logits: Tensor) -> Tensor:
    """Set rows [R, V] whose best logit is NaN or infinite to 0, in place; bool [R], which."""
    unsound = torch.isfinite(logits.amax(1)).logical_not_()
    if logits.device.type != "cpu":
        logits.masked_fill_(unsound[:, None], 0.0)  # asking whether there are any would wait
    elif bool(unsound.any()):
        logits[unsound] = 0.0
    return unsound


def token_logprobs(
    token_ids: Sequence[int], top: TopLogprobs, counts: Sequence[int]
) -> list[TokenLogprobs]:
    """Log-probabilities as callers get them, free of infinities.

    Args:
        token_ids: The token of each row.
        top: From `Ops.top_logprobs` for these tokens.
        counts: How many of the most likely tokens each row wants.
    """
    logprob, rank, ids, logprobs = (tensor.tolist() for tensor in top)
    return [
        TokenLogprobs(
            token_id=token_id,
            logprob=_finite(logprob[row]),
            rank=rank[row],
            top=tuple(
                (token, _finite(value))
                for token, value in zip(ids[row][:count], logprobs[row][:count], strict=True)
            ),
        )
        for row, (token_id, count) in enumerate(zip(token_ids, counts, strict=True))
    ]


def _finite(logprob: float) -> float:
    """The number, or the floor for -inf (and NaN: a row of broken logits is an error anyway)."""
    return max(LOGPROB_FLOOR, logprob)
