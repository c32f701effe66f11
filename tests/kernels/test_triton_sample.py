"""sample and top_logprobs in Triton draw and score what the reference does."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from support.triton_kernels import interpreted
from triolet_kernels.ops import SamplingBatch
from triolet_kernels.reference.sample import sample as reference_sample
from triolet_kernels.reference.top_logprobs import top_logprobs as reference_top_logprobs
from triolet_kernels.triton.sample import sample
from triolet_kernels.triton.top_logprobs import top_logprobs

pytestmark = interpreted
TILE = 256
ROUNDING = 3e-6
"""Relative error of a mass in float32: of a logit's distance, times 1.44, plus that of exp2."""


def batch_of(
    rows: int,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
) -> SamplingBatch:
    generator = torch.Generator().manual_seed(seed)
    return SamplingBatch(
        temperature=torch.full((rows,), temperature),
        top_k=torch.full((rows,), top_k, dtype=torch.int32),
        top_p=torch.full((rows,), top_p),
        min_p=torch.full((rows,), min_p),
        uniform=torch.rand(rows, generator=generator, dtype=torch.float64),
        all_greedy=False,
    )


def logits_of(rows: int, width: int, spread: float, levels: int, seed: int) -> Tensor:
    """Random logits, of only so many different values if `levels` is not 0: ties everywhere."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, width, generator=generator) * spread
    return (logits * levels).round() / levels if levels else logits


def tokens_a_rounding_away(row: Tensor, batch: SamplingBatch, index: int) -> set[int]:
    """What the reference draws for parameters that differ by a rounding error."""
    one = {
        field.name: getattr(batch, field.name)[index : index + 1]
        for field in dataclasses.fields(SamplingBatch)
        if field.name != "all_greedy"
    }
    found: set[int] = set()
    for relative in (-ROUNDING, 0.0, ROUNDING):
        for shift in (-ROUNDING, 0.0, ROUNDING):
            changed = {
                **one,
                "top_p": (one["top_p"] * (1 + relative)).clamp(0, 1),
                "min_p": one["min_p"] * (1 + relative),
                "uniform": (one["uniform"] + shift).clamp(0, 1 - 2.0**-53),
            }
            found.add(int(reference_sample(row[None], SamplingBatch(**changed, all_greedy=False))))
    return found


@settings(max_examples=12, deadline=None)
@given(
    width=st.sampled_from([1, 2, 17, 256, 257, 700]),
    spread=st.sampled_from([0.0, 0.5, 3.0, 40.0]),
    levels=st.sampled_from([0, 2]),
    temperature=st.sampled_from([0.0, 0.05, 0.7, 1.5]),
    top_k=st.sampled_from([0, 1, 3, 50, 500, 10_000]),
    top_p=st.sampled_from([0.0, 0.1, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    banned=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_same_token_as_the_reference(
    width: int,
    spread: float,
    levels: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    banned: bool,
    seed: int,
) -> None:
    logits = logits_of(2, width, spread, levels, seed)
    if banned and width > 1:
        logits[:, ::2] = -math.inf
    batch = batch_of(2, temperature, top_k, top_p, min_p, seed)
    result = sample(logits.clone(), batch, tile=TILE).tolist()
    expected = reference_sample(logits, batch).tolist()
    for row in range(2):
        if result[row] != expected[row]:
            near = tokens_a_rounding_away(logits[row], batch, row)
            assert result[row] in near, (result, expected)


@settings(max_examples=4, deadline=None)
@given(top_k=st.integers(1, 40), seed=st.integers(0, 1000), spread=st.sampled_from([0.01, 2.0]))
def test_a_row_of_few_values_keeps_ties_in_the_order_of_ids(
    top_k: int, seed: int, spread: float
) -> None:
    """Exact, without room for rounding: every uniform number is in the middle of a token."""
    logits = logits_of(1, 300, spread, 1, seed)
    kept = torch.sort(logits[0], descending=True, stable=True).indices[:top_k].sort().values
    mass = (logits[0, kept].double() - logits.max()).exp()
    cumulative = mass.cumsum(0) / mass.sum()
    for i in (0, len(kept) // 2, len(kept) - 1):
        batch = batch_of(1, 1.0, top_k)
        middle = cumulative[i] - mass[i] / mass.sum() / 2
        result = sample(logits, dataclasses.replace(batch, uniform=middle[None]), tile=TILE)
        assert int(result) == int(kept[i])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_without_a_best_logit_get_minus_one_and_harm_no_other(temperature: float) -> None:
    logits = logits_of(4, 300, 1.0, 0, 0)
    logits[0, 290] = math.nan
    logits[1] = -math.inf
    logits[3, 5] = math.inf
    batch = batch_of(4, temperature, 40, 0.9)
    result = sample(logits, batch, tile=TILE).tolist()
    assert [result[i] for i in (0, 1, 3)] == [-1, -1, -1]
    alone = dataclasses.replace(
        batch,
        **{
            field.name: getattr(batch, field.name)[2:3]
            for field in dataclasses.fields(SamplingBatch)
            if field.name != "all_greedy"
        },
    )
    assert result[2] == int(sample(logits[2:3].clone(), alone, tile=TILE)) >= 0


def test_the_smallest_temperature_is_greedy() -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0 - 6e-8, -3.0]])
    assert int(sample(logits, batch_of(1, 1e-38), tile=TILE)) == 1


@settings(max_examples=6, deadline=None)
@given(
    width=st.sampled_from([5, 256, 600]),
    spread=st.sampled_from([0.0, 3.0, 30.0]),
    levels=st.sampled_from([0, 2]),
    k=st.sampled_from([0, 1, 5, 20, 600]),
    seed=st.integers(0, 1000),
)
def test_top_logprobs_equal_the_reference(
    width: int, spread: float, levels: int, k: int, seed: int
) -> None:
    logits = logits_of(2, width, spread, levels, seed)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, width, (2,), generator=generator)
    logprob, rank, ids, logprobs = top_logprobs(logits, tokens, min(k, width), tile=TILE)
    expected = reference_top_logprobs(logits, tokens, min(k, width))
    assert rank.tolist() == expected[1].tolist()
    assert ids.tolist() == expected[2].tolist()
    for result, wanted in ((logprob, expected[0]), (logprobs, expected[3])):
        torch.testing.assert_close(result, wanted, rtol=1e-5, atol=2e-5)


def test_banned_tokens_come_last_with_no_probability() -> None:
    logits = torch.tensor([[1.0, -math.inf, 3.0, -math.inf]])
    _, _, ids, logprobs = top_logprobs(logits, torch.tensor([1]), 4, tile=16)
    assert ids.tolist() == [[2, 0, 1, 3]]
    assert logprobs[0, 2:].tolist() == [-math.inf, -math.inf]


def test_what_does_not_fit_is_refused() -> None:
    logits = torch.zeros(2, 8)
    with pytest.raises(ValueError, match="contiguous float32"):
        sample(logits.T, batch_of(8, 1.0))
    with pytest.raises(ValueError, match="between 0 and the vocabulary size 8"):
        top_logprobs(logits, torch.tensor([0, 0]), 9)
