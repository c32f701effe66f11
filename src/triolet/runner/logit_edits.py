"""What the parameters of one sequence do to its logits, as sparse edits. No torch here.

A penalty, a bias or a ban touches the tokens it names or the tokens the sequence has seen, never
the whole vocabulary: a row without such parameters costs nothing beside one that has them.
Everything is a pure function of prompt and output tokens, so a sequence that resumes anywhere
goes on as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from triolet.errors import InvalidRequest
from triolet.messages.scheduler_to_runner import SequenceState
from triolet.sampling_params import SamplingParams

Ids = NDArray[np.int64]


class SeenTokens:
    """Distinct tokens of a sequence and how often each is in its output.

    Prompt tokens are listed (with count 0) only where the repetition penalty needs them.
    """

    def __init__(self, prompt: Iterable[int], output: Iterable[int]) -> None:
        distinct = dict.fromkeys(prompt)
        self._index = {token_id: i for i, token_id in enumerate(distinct)}
        capacity = max(16, 2 * len(distinct))
        self._ids = np.zeros(capacity, np.int64)
        self._counts = np.zeros(capacity, np.float32)
        self._ids[: len(distinct)] = list(distinct)
        for token_id in output:
            self.append(token_id)

    @property
    def ids(self) -> Ids:
        """int64 [N], each token once."""
        return self._ids[: len(self._index)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """float32 [N], occurrences in the output."""
        return self._counts[: len(self._index)]

    def append(self, token_id: int) -> None:
        """Count one more token of the output."""
        index = self._index.setdefault(token_id, len(self._index))
        if index == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[index] = token_id
        self._counts[index] += 1


class LogitEdits:
    """The edits of one sequence; `append` keeps them up to date.

    Attributes:
        sampling: The parameters they come from.
        bias_ids: int64 [N], tokens with a bias.
        bias: float32 [N], what is added to their logits.
        seen: Tokens the penalties look at, None without a penalty.
        allowed_ids: int64 [N], the only tokens that may be sampled; None is all.
    """

    def __init__(self, state: SequenceState) -> None:
        sampling = state.sampling
        prompt = state.token_ids[: state.num_prompt_tokens]
        output = state.token_ids[state.num_prompt_tokens :]
        self.sampling = sampling
        self.bias_ids: Ids = np.array(list(sampling.logit_bias), np.int64)
        self.bias = np.array(list(sampling.logit_bias.values()), np.float32)
        self.seen: SeenTokens | None = None
        if sampling.repetition_penalty != 1.0:
            self.seen = SeenTokens(prompt, output)
        elif sampling.presence_penalty or sampling.frequency_penalty:
            self.seen = SeenTokens((), output)
        allowed = sampling.allowed_token_ids
        self.allowed_ids: Ids | None = None if allowed is None else _unique(allowed)
        self._stop_ids = _unique((*state.eos_token_ids, *sampling.stop_token_ids))
        self._num_output = len(output)
        self._bad_words = sampling.bad_word_token_ids
        self._tail_len = max((len(word) - 1 for word in self._bad_words), default=0)
        self._tail = output[len(output) - min(len(output), self._tail_len) :]

    @classmethod
    def of(cls, state: SequenceState) -> LogitEdits | None:
        """The edits of a sequence, or None if its parameters ask for none."""
        return cls(state) if needs_edits(state.sampling) else None

    @property
    def reads_output(self) -> bool:
        """Whether the next token depends on knowing every one before it.

        Penalties do too, but can count a token where it lies, on the device.
        """
        return bool(
            self._tail_len
            or self.sampling.logits_processors
            or self._num_output < self.sampling.min_tokens
        )

    def append(self, token_id: int) -> None:
        """Take a new token of the output into account."""
        self._num_output += 1
        if self.seen is not None:
            self.seen.append(token_id)
        if self._tail_len:
            self._tail = [*self._tail, token_id][-self._tail_len :]

    def banned_ids(self) -> Ids:
        """int64 [N], tokens that may not come next; an id can be there twice."""
        banned: list[int] = []
        for *prefix, last in self._bad_words:
            if not prefix or self._tail[-len(prefix) :] == prefix:
                banned.append(last)
        if self._num_output < self.sampling.min_tokens:
            return np.concatenate([self._stop_ids, np.array(banned, np.int64)])
        return np.array(banned, np.int64)


def needs_edits(sampling: SamplingParams) -> bool:
    """Whether any parameter changes logits other than by temperature, top-k, top-p or min-p."""
    return bool(
        sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty != 1.0
        or sampling.logit_bias
        or sampling.bad_word_token_ids
        or sampling.allowed_token_ids is not None
        or sampling.min_tokens
        or sampling.logits_processors
    )


def check_ids(state: SequenceState, vocab_size: int, num_rows: int) -> None:
    """Refuse ids that would reach past a row: they would read or change a neighbour's.

    The engine has checked them before; this is the last line.

    Args:
        state: A new sequence.
        vocab_size: Ids below this may be sampled.
        num_rows: Ids below this have an embedding.

    Raises:
        InvalidRequest: An id is out of range; `param` names the field.
    """
    sampling = state.sampling
    bad_words = [token_id for word in sampling.bad_word_token_ids for token_id in word]
    for name, ids, limit in (
        ("prompt", state.token_ids, num_rows),
        ("stop_token_ids", sampling.stop_token_ids, vocab_size),
        ("logit_bias", list(sampling.logit_bias), vocab_size),
        ("allowed_token_ids", sampling.allowed_token_ids or (), vocab_size),
        ("bad_words", bad_words, vocab_size),
    ):
        if ids and not (min(ids) >= 0 and max(ids) < limit):
            wrong = next(token_id for token_id in ids if not 0 <= token_id < limit)
            raise InvalidRequest(
                f"{name} has token id {wrong}; this model's ids are 0..{limit - 1}", param=name
            )


def _unique(ids: Iterable[int]) -> Ids:
    """Each id once, in order of appearance."""
    return np.array(list(dict.fromkeys(ids)), np.int64)
