"""Drawn tokens follow the exact distribution: chi-square against transformers' warpers.

The oracle is softmax over transformers' own processors. A sampler that is a little off must
fail the same test, else the test could not fail at all.
"""

import dataclasses

import attrs
import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from support.sampling import VOCAB, reference_ops, sampler, sequences_of
from triolet.runner.sequence_table import SequenceTable
from triolet.sampling_params import SamplingParams
from triolet_kernels.ops import Ops, SamplingBatch

DRAWS = 1500
WARPERS = {
    "plain": SamplingParams(),
    "hot": SamplingParams(temperature=1.7),
    "cool": SamplingParams(temperature=0.5),
    "top_k": SamplingParams(top_k=5),
    "top_p": SamplingParams(top_p=0.7),
    "min_p": SamplingParams(min_p=0.15),
    "top_k+top_p": SamplingParams(top_k=8, top_p=0.8, temperature=1.4),
    "all": SamplingParams(temperature=1.9, top_k=12, top_p=0.93, min_p=0.05),
}


def expected(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """float64 [V], probabilities after transformers' warpers."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k > 0:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0.0:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    scores: Tensor = warpers(torch.zeros(1, 1).long(), logits[None].double())  # type: ignore[arg-type]
    return scores[0].softmax(-1)


def deviations(counts: Tensor, probabilities: Tensor) -> float:
    """Chi-square as a number of standard deviations (Wilson and Hilferty 1931).

    Tokens that are expected fewer than 8 times are one bin.
    """
    total = float(counts.sum())
    wanted = probabilities * total
    common = wanted >= 8
    bins = [(float(c), float(w)) for c, w in zip(counts[common], wanted[common], strict=True)]
    rare = float(wanted[~common].sum())
    if rare >= 1:
        bins.append((float(counts[~common].sum()), rare))
    degrees = len(bins) - 1
    statistic = sum((count - want) ** 2 / want for count, want in bins)
    spread = 2 / (9 * degrees)
    return float(((statistic / degrees) ** (1 / 3) - (1 - spread)) / spread**0.5)


def draw(logits: Tensor, sampling: SamplingParams, first_seed: int, ops: Ops) -> Tensor:
    """int64 [V], how often each token was drawn by requests of different seeds."""
    table = SequenceTable(1)
    seeds = range(first_seed, first_seed + DRAWS)
    parameters = [attrs.evolve(sampling, seed=seed) for seed in seeds]
    sequences = sequences_of(table, parameters, prompt=[1, 2])
    made = sampler(ops=ops)
    rows = made.collect(made.launch(logits.repeat(DRAWS, 1), sequences, table))
    assert rows.errors == []
    return torch.bincount(torch.tensor(rows.token_ids), minlength=VOCAB)


def fixed_logits() -> Tensor:
    return 2.0 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(0))


class _BiasedOps:
    """The reference, but for random numbers that lean a little to one side."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self.device = ops.device

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        return self._ops.sample(logits, dataclasses.replace(batch, uniform=batch.uniform**1.4))


@pytest.mark.parametrize("sampling", WARPERS.values(), ids=WARPERS)
def test_draws_follow_the_exact_distribution(sampling: SamplingParams) -> None:
    logits = fixed_logits()
    probabilities = expected(logits, sampling)
    counts = draw(logits, sampling, first_seed=10_000, ops=reference_ops())
    assert int(counts[probabilities == 0].sum()) == 0
    assert deviations(counts, probabilities) < 4


@pytest.mark.slow
@pytest.mark.parametrize("sampling", WARPERS.values(), ids=WARPERS)
def test_fresh_seeds_follow_it_too(sampling: SamplingParams) -> None:
    """Other seeds each run; a failure prints the first. One in ten million fails falsely."""
    seed = torch.Generator().seed() >> 24
    logits = fixed_logits()
    counts = draw(logits, sampling, first_seed=seed, ops=reference_ops())
    assert deviations(counts, expected(logits, sampling)) < 5.5, seed


@pytest.mark.parametrize("name", ["plain", "top_p", "all"])
def test_a_biased_sampler_fails_the_same_test(name: str) -> None:
    logits = fixed_logits()
    biased: Ops = _BiasedOps(reference_ops())  # type: ignore[assignment]  # what sampling needs
    counts = draw(logits, WARPERS[name], first_seed=10_000, ops=biased)
    assert deviations(counts, expected(logits, WARPERS[name])) > 4


def test_deviations_are_those_of_chi_square() -> None:
    fair = torch.full((4,), 0.25, dtype=torch.float64)
    assert deviations(torch.tensor([250, 250, 250, 250]), fair) < -2
    assert abs(deviations(torch.tensor([270, 245, 260, 225]), fair)) < 2
    assert deviations(torch.tensor([400, 200, 200, 200]), fair) > 8
