"""Edits of logits against transformers' processors, and what reaches whom in a mixed batch."""

import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from support.sampling import VOCAB, reference_ops, sampler, sequences_of
from triolet.messages.scheduler_to_runner import SequenceState
from triolet.request import SequenceId
from triolet.runner.logits_processors import (
    LogitsProcessor,
    add_bias,
    ban_tokens,
    penalties_of,
)
from triolet.runner.sampler import SampledRows
from triolet.runner.sequence_table import SequenceTable
from triolet.sampling_params import SamplingParams
from triolet_kernels.ops import SamplingBatch

PROMPT = [1, 2, 3, 4, 3]
OUTPUT = [5, 6, 5, 5, 2]


def random_logits(rows: int, seed: int = 0) -> Tensor:
    return 3.0 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def sample(
    logits: Tensor,
    parameters: Sequence[SamplingParams],
    processors: Mapping[str, LogitsProcessor] | None = None,
    vocab_size: int = VOCAB,
) -> SampledRows:
    """One row per entry of parameters, each after PROMPT and OUTPUT."""
    table = SequenceTable(1)
    sequences = sequences_of(table, parameters, PROMPT, OUTPUT)
    made = sampler(processors or {}, vocab_size)
    return made.collect(made.launch(logits, sequences, table))


def edited(sampling: SamplingParams, logits: Tensor) -> Tensor:
    """A row after bias, penalties and bans."""
    table = SequenceTable(1)
    (sequence,) = sequences_of(table, [sampling], PROMPT, OUTPUT)
    row = logits.clone()
    assert sequence.edits is not None
    add_bias(row, [(0, sequence.edits)])
    penalties = penalties_of([(0, sequence.edits)], row.device)
    if penalties is not None:
        reference_ops().penalize(row, penalties)
    ban_tokens(row, [(0, sequence.edits)])
    return row


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_penalty_equals_transformers(penalty: float) -> None:
    logits = random_logits(1)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(
        torch.tensor([PROMPT + OUTPUT]), logits.clone()
    )
    ours = edited(SamplingParams(seed=1, repetition_penalty=penalty), logits)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)


def test_presence_and_frequency_penalties_are_openais_formula() -> None:
    logits = random_logits(1)
    ours = edited(SamplingParams(seed=1, presence_penalty=0.4, frequency_penalty=0.7), logits)
    for token in range(VOCAB):
        count = OUTPUT.count(token)
        expected = float(logits[0, token]) - 0.7 * count - 0.4 * (count > 0)
        assert float(ours[0, token]) == pytest.approx(expected, abs=1e-6)


def test_bias_comes_before_penalties() -> None:
    logits = torch.zeros(1, VOCAB)
    ours = edited(
        SamplingParams(
            seed=1, logit_bias={5: 6.0, 9: -1.0}, repetition_penalty=2.0, presence_penalty=1.0
        ),
        logits,
    )
    assert float(ours[0, 5]) == 6.0 / 2.0 - 1.0
    assert float(ours[0, 9]) == -1.0


def test_bad_words_equal_transformers() -> None:
    words = [[9], [2, 8], [5, 2, 7], [4, 3, 1]]
    logits = random_logits(1)
    expected = NoBadWordsLogitsProcessor(words)(torch.tensor([PROMPT + OUTPUT]), logits.clone())
    ours = edited(SamplingParams(seed=1, bad_word_token_ids=words), logits)
    assert torch.equal(ours, expected)


@pytest.mark.parametrize("min_tokens", [5, 6])
def test_min_tokens_equals_transformers(min_tokens: int) -> None:
    logits = random_logits(1)
    expected = MinNewTokensLengthLogitsProcessor(len(PROMPT), min_tokens, [0, 11])(
        torch.tensor([PROMPT + OUTPUT]), logits.clone()
    )
    ours = edited(SamplingParams(seed=1, min_tokens=min_tokens, stop_token_ids=(11,)), logits)
    assert torch.equal(ours, expected)


def test_allowed_token_ids_leave_nothing_else() -> None:
    logits = random_logits(1)
    ours = edited(SamplingParams(seed=1, allowed_token_ids=(3, 8, 3)), logits)
    kept = torch.isfinite(ours[0]).nonzero()[:, 0].tolist()
    assert kept == [3, 8]
    assert torch.equal(ours[0, kept], logits[0, kept])


def test_a_plain_row_keeps_its_bits_beside_edited_ones() -> None:
    logits = random_logits(4)
    before = logits.clone()
    greedy = SamplingParams(temperature=0.0, seed=1)
    rows = sample(
        logits,
        [
            greedy,
            SamplingParams(seed=1, repetition_penalty=1.5, logit_bias={3: 5.0}),
            greedy,
            SamplingParams(seed=1, allowed_token_ids=(1,), min_tokens=50),
        ],
    )
    assert torch.equal(logits[[0, 2]], before[[0, 2]])
    assert rows.token_ids[0] == int(before[0].argmax())
    assert rows.token_ids[2] == int(before[2].argmax())
    assert rows.token_ids[3] == 1


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    logits = torch.zeros(2, VOCAB)
    greedy = SamplingParams(temperature=0.0, seed=1)
    assert sample(logits, [greedy, SamplingParams(temperature=1e-6, seed=1)]).token_ids == [0, 0]


def test_tiny_temperatures_are_safe() -> None:
    logits = 100.0 * random_logits(1)
    rows = sample(logits.clone(), [SamplingParams(temperature=2e-5, seed=1)])
    assert rows.token_ids == [int(logits.argmax())]


def test_excluding_every_token_fails_the_row_alone() -> None:
    for neighbour in (SamplingParams(temperature=0.0, seed=1), SamplingParams(seed=1)):
        rows = sample(
            random_logits(2),
            [SamplingParams(seed=1, allowed_token_ids=(0,), min_tokens=50, logprobs=1), neighbour],
        )
        assert len(rows.token_ids) == 1
        ((failed, text),) = rows.errors
        assert failed.state.sequence_id == 0
        assert "exclude every one" in text


class _ShyOps:
    """Says -1 for a greedy row with a NaN in it, as native kernels do."""

    def __init__(self) -> None:
        self._ops = reference_ops()
        self.device = self._ops.device

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        return self._ops.sample(logits, batch).masked_fill(logits.isnan().any(1), -1)

    def top_logprobs(self, logits: Tensor, tokens: Tensor, k: int) -> tuple[Tensor, ...]:
        assert tokens.min() >= 0
        return self._ops.top_logprobs(logits, tokens, k)


def test_a_row_without_a_best_logit_fails_alone() -> None:
    greedy = SamplingParams(temperature=0.0, seed=1, logprobs=1)
    logits = random_logits(2)
    logits[0, 7] = math.nan
    table = SequenceTable(1)
    sequences = sequences_of(table, [greedy, greedy], PROMPT)
    made = sampler(ops=_ShyOps())  # type: ignore[arg-type]  # what sampling needs
    rows = made.collect(made.launch(logits, sequences, table))
    assert rows.token_ids == [int(logits[1].argmax())]
    assert [(s.state.sequence_id, "not numbers" in text) for s, text in rows.errors] == [(0, True)]


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_row_that_cannot_be_drawn_fails_alone(broken: float) -> None:
    sampling = [
        SamplingParams(temperature=1.0, seed=seed, top_p=0.9, logprobs=0) for seed in range(3)
    ]
    sound = random_logits(3)
    logits = sound.clone()
    logits[1] = broken
    rows = [sample(part, sampling) for part in (sound, logits)]
    expected, found = rows
    assert found.token_ids == [expected.token_ids[0], expected.token_ids[2]]
    assert [s.state.sequence_id for s, _ in found.errors] == [1]


def test_logprobs_of_impossible_tokens_have_the_floor() -> None:
    logits = random_logits(1)
    logits[0, 7:] = -math.inf
    (entry,) = sample(logits, [SamplingParams(seed=1, logprobs=VOCAB)]).logprobs
    assert entry is not None
    assert [value for _, value in entry.top[7:]] == [-9999.0] * (VOCAB - 7)


def shift(prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
    assert (prompt, output) == (PROMPT, OUTPUT)
    logits[4] += 1000.0  # in place on purpose: it was given a copy
    return logits


def raise_error(prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
    raise KeyError("boom")


PROCESSORS: dict[str, LogitsProcessor] = {
    "shift": shift,
    "raise": raise_error,
    "double": lambda _, __, logits: 2 * logits,
    "none": lambda _, __, logits: None,
    "short": lambda _, __, logits: logits[:3],
    "nan": lambda _, __, logits: logits * math.nan,
    "int": lambda _, __, logits: logits.long(),
    "inf": lambda _, __, logits: logits.index_fill(0, torch.tensor([6]), math.inf),
}


def with_processors(*names: str, **parameters: object) -> SamplingParams:
    return SamplingParams(seed=1, logits_processors=names, **parameters)  # type: ignore[arg-type]


def test_processors_run_in_the_order_of_the_request_and_see_its_tokens() -> None:
    rows = sample(random_logits(1), [with_processors("double", "shift")], PROCESSORS)
    assert rows.token_ids == [4]


def test_no_processor_undoes_a_ban() -> None:
    rows = sample(
        random_logits(2),
        [
            with_processors("shift", allowed_token_ids=(9,)),
            with_processors("shift", bad_word_token_ids=((4,),), temperature=0.0),
        ],
        PROCESSORS,
    )
    assert rows.token_ids[0] == 9
    assert rows.token_ids[1] != 4


def test_an_infinite_logit_wins() -> None:
    assert sample(random_logits(1), [with_processors("inf")], PROCESSORS).token_ids == [6]


@pytest.mark.parametrize("name", ["raise", "none", "short", "nan", "int", "unknown"])
def test_a_bad_processor_fails_its_row_alone(name: str) -> None:
    logits = random_logits(2)
    best = int(logits[1].argmax())
    rows = sample(
        logits, [with_processors(name), SamplingParams(temperature=0.0, seed=1)], PROCESSORS
    )
    assert rows.token_ids == [best]
    assert [name in text for _, text in rows.errors] == [True]


def test_processors_do_not_see_padding() -> None:
    widths: list[int] = []

    def measure(prompt: list[int], output: list[int], logits: Tensor) -> Tensor:
        widths.append(len(logits))
        return logits

    sample(random_logits(1), [with_processors("m")], {"m": measure}, vocab_size=VOCAB - 4)
    assert widths == [VOCAB - 4]


def test_a_sequence_needs_a_seed() -> None:
    with pytest.raises(AssertionError, match="seed"):
        SequenceTable(1).add(SequenceState(SequenceId(1), [1], 1, SamplingParams(), 0, ()))
