"""The exact sampler against sorting the whole vocabulary, row by row in float64."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from triolet_kernels.ops import SamplingBatch
from triolet_kernels.reference.sample import sample
from triolet_kernels.reference.top_logprobs import top_logprobs

Row = tuple[float, int, float, float, float]
"""temperature, top_k, top_p, min_p, uniform."""


def batch(rows: list[Row]) -> SamplingBatch:
    temperature, top_k, top_p, min_p, uniform = zip(*rows, strict=True)
    return SamplingBatch(
        temperature=torch.tensor(temperature, dtype=torch.float32),
        top_k=torch.tensor(top_k, dtype=torch.int32),
        top_p=torch.tensor(top_p, dtype=torch.float32),
        min_p=torch.tensor(min_p, dtype=torch.float32),
        uniform=torch.tensor(uniform, dtype=torch.float64),
        all_greedy=all(t == 0 for t in temperature),
    )


def kept_mass(logits: Tensor, row: Row) -> Tensor:
    """Mass of every token after the filters, by a stable sort: the definition."""
    temperature, top_k, top_p, min_p, _ = row
    scaled = logits.double() / float(torch.tensor(temperature, dtype=torch.float32))
    mass = (scaled - scaled.max()).exp()
    order = torch.argsort(mass, descending=True, stable=True)
    count = top_k if 0 < top_k < len(mass) else len(mass)
    best = order[:count]
    if float(torch.tensor(top_p)) < 1:
        share = mass[best] / mass[best].sum()
        before = share.cumsum(0) - share
        best = best[before < float(torch.tensor(top_p, dtype=torch.float32))]
        assert len(best), "the best token is always kept"
    best = best[mass[best] >= float(torch.tensor(min_p, dtype=torch.float32)) * mass.max()]
    kept = torch.zeros_like(mass)
    kept[best] = mass[best]
    return kept


def draw(mass: Tensor, uniform: float) -> int:
    cumulative = mass.cumsum(0)
    return int((cumulative <= uniform * cumulative[-1]).sum())


# Coarse logits, so that ties at thresholds are common.
LOGITS = st.lists(st.integers(-6, 6).map(lambda n: n / 2), min_size=1, max_size=40)
ROW = st.tuples(
    st.sampled_from([0.3, 1.0, 2.0]),
    st.sampled_from([0, 1, 3, 10, 100]),
    st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.floats(0, 1, exclude_max=True),
)


@settings(max_examples=200, deadline=None)
@given(logits=LOGITS, row=ROW)
def test_draws_from_the_tokens_that_sorting_would_keep(logits: list[float], row: Row) -> None:
    values = torch.tensor([logits])
    mass = kept_mass(values[0], row)
    token = int(sample(values, batch([row]))[0])
    assert mass[token] > 0
    # the uniforms on either side of the token's own share draw other tokens
    cumulative = mass.cumsum(0)
    low = float(cumulative[token] - mass[token]) / float(cumulative[-1])
    high = float(cumulative[token]) / float(cumulative[-1])
    assert low - 1e-9 <= row[4] <= high + 1e-9


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_row_draws_the_same_alone_and_in_a_crowd(data: st.DataObject) -> None:
    rows = data.draw(st.lists(ROW | st.just((0.0, 0, 1.0, 0.0, 0.5)), min_size=1, max_size=6))
    logits = torch.randn(len(rows), 50, generator=torch.Generator().manual_seed(0))
    together = sample(logits, batch(rows))
    alone = torch.cat([sample(logits[i : i + 1], batch([row])) for i, row in enumerate(rows)])
    assert torch.equal(together, alone)


@pytest.mark.parametrize(
    "row",
    [
        (1.0, 0, 1.0, 0.0, 0.0), (0.7, 50, 1.0, 0.0, 0.0), (1.0, 0, 0.9, 0.0, 0.0),
        (1.5, 0, 0.999, 0.0, 0.0), (1.0, 400, 0.8, 0.05, 0.0),
    ],
)  # fmt: skip
def test_wide_vocabulary_keeps_what_sorting_keeps(row: Row) -> None:
    """Beyond the first candidates: the border of the support is found by two uniforms."""
    logits = torch.randn(1, 30_000, generator=torch.Generator().manual_seed(1))
    mass = kept_mass(logits[0], row)
    ids = torch.nonzero(mass)[:, 0]
    ends = [int(sample(logits, batch([(*row[:4], u)]))[0]) for u in (0.0, 1 - 2**-53)]
    assert ends == [int(ids[0]), int(ids[-1])]
    for uniform in (0.1, 0.37, 0.72):
        token = int(sample(logits, batch([(*row[:4], uniform)]))[0])
        assert abs(token - draw(mass, uniform)) <= 1, "rounding at a border, at most"


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0]])
    greedy, random = (0.0, 0, 1.0, 0.0, 0.9), (1.0, 1, 1.0, 0.0, 0.9)
    assert sample(logits, batch([greedy, greedy])).tolist() == [1, 0]
    assert sample(logits, batch([greedy, random])).tolist() == [1, 0], "top_k 1 keeps the same"


def test_forbidden_tokens_are_never_drawn() -> None:
    logits = torch.full((1, 9), -torch.inf)
    logits[0, [2, 5]] = 1.0
    for uniform in (0.0, 0.49, 0.51, 1 - 2**-53):
        for row in ((1.0, 0, 1.0, 0.0, uniform), (1.0, 8, 0.999, 0.0, uniform)):
            assert int(sample(logits, batch([row]))[0]) == (2 if uniform < 0.5 else 5)


def test_tiny_temperature_is_greedy_and_finite() -> None:
    logits = torch.tensor([[1.0, 1.001, -50.0]])
    assert int(sample(logits, batch([(1e-30, 0, 1.0, 0.0, 0.999)]))[0]) == 1


def test_row_without_a_finite_logit_is_an_error_that_names_it() -> None:
    logits = torch.zeros(2, 3)
    logits[1] = -torch.inf
    row = (1.0, 0, 1.0, 0.0, 0.5)
    with pytest.raises(ValueError, match="row 1 has no finite logit"):
        sample(logits, batch([row, row]))


@settings(max_examples=60, deadline=None)
@given(logits=LOGITS, data=st.data())
def test_top_logprobs_are_those_of_log_softmax(logits: list[float], data: st.DataObject) -> None:
    values = torch.tensor([logits, logits])
    size = len(logits)
    token = data.draw(st.integers(0, size - 1))
    k = data.draw(st.integers(0, size))
    chosen, rank, ids, best = top_logprobs(values, torch.tensor([token, 0]), k)
    oracle = values[0].double().log_softmax(0)
    order = torch.argsort(values[0], descending=True, stable=True)
    assert abs(float(chosen[0]) - float(oracle[token])) < 1e-6
    assert int(rank[0]) == order.tolist().index(token) + 1
    assert ids[0].tolist() == order[:k].tolist()
    torch.testing.assert_close(best[0].double(), oracle[order[:k]], rtol=0, atol=1e-6)


def test_top_logprobs_of_forbidden_tokens_are_minus_infinity() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0]])
    chosen, rank, ids, best = top_logprobs(logits, torch.tensor([1]), 3)
    assert chosen.tolist() == [-torch.inf]
    assert rank.tolist() == [3]
    assert ids.tolist() == [[0, 2, 1]]
    assert best[0, 2] == -torch.inf


def test_more_logprobs_than_tokens_is_an_error() -> None:
    with pytest.raises(ValueError, match="between 0 and the vocabulary size 3, not 4"):
        top_logprobs(torch.zeros(1, 3), torch.tensor([0]), 4)
