"""The native sampler draws the same token as the reference from the same uniform number."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from support.native_kernels import isas, native_ops, reference_ops
from triolet_kernels.ops import SamplingBatch

ISAS = isas()


def make_batch(
    rows: int,
    temperature: float = 1.0,
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
        all_greedy=temperature == 0.0,
    )


def logits_of(rows: int, vocabulary: int, spread: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocabulary, generator=generator) * spread


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(
    vocabulary=st.integers(1, 3000),
    spread=st.sampled_from([0.0, 0.5, 3.0, 20.0]),
    temperature=st.sampled_from([0.05, 0.7, 1.0, 1.5]),
    top_k=st.sampled_from([0, 1, 3, 11, 50, 500, 10_000]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_same_token_as_the_reference(
    isa: str,
    vocabulary: int,
    spread: float,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
) -> None:
    rows = 4
    logits = logits_of(rows, vocabulary, spread, seed)
    batch = make_batch(rows, temperature, top_k, top_p, min_p, seed)
    result = native_ops(torch.bfloat16, isa, 2).sample(logits, batch)
    expected = reference_ops().sample(logits, batch)
    for row in range(rows):
        if result[row] != expected[row]:
            assert is_rounding(logits[row], batch, row, int(result[row])), (result, expected)


def is_rounding(row: Tensor, batch: SamplingBatch, index: int, token: int) -> bool:
    """Whether a token is right for some parameters a float32 rounding away."""
    tokens = set()
    for relative in (-3e-6, 0.0, 3e-6):
        for shift in (-3e-6, 0.0, 3e-6):
            one = SamplingBatch(
                batch.temperature[index : index + 1],
                batch.top_k[index : index + 1],
                (batch.top_p[index : index + 1] * (1 + relative)).clamp(0, 1),
                batch.min_p[index : index + 1] * (1 + relative),
                (batch.uniform[index : index + 1] + shift).clamp(0, 1 - 1e-12),
                batch.all_greedy,
            )
            tokens.add(int(reference_ops().sample(row[None], one)))
    return token in tokens


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=15, deadline=None)
@given(vocabulary=st.integers(1, 2000), levels=st.integers(1, 4), seed=st.integers(0, 99))
def test_greedy_takes_the_first_of_equal_logits(
    isa: str, vocabulary: int, levels: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, levels, (3, vocabulary), generator=generator).to(torch.float32)
    ops = native_ops(torch.bfloat16, isa)
    assert torch.equal(ops.sample(logits, make_batch(3, temperature=0.0)), logits.argmax(1))
    mixed = make_batch(3)
    mixed.temperature[:2] = 0.0
    assert torch.equal(ops.sample(logits, mixed)[:2], logits.argmax(1)[:2])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (0, 0.5), (1, 1.0), (40, 1.0), (300, 0.6)])
def test_ties_at_the_threshold_are_kept_in_the_order_of_ids(
    isa: str, top_k: int, top_p: float
) -> None:
    """All logits equal: every filter keeps a prefix of the ids."""
    logits = torch.zeros(64, 1000)
    batch = make_batch(64, top_k=top_k, top_p=top_p)
    batch.uniform.copy_(torch.linspace(0, 1 - 1e-9, 64))
    kept = math.ceil((top_k or 1000) * float(batch.top_p[0]))
    expected = (batch.uniform * kept).to(torch.int64)
    tokens = native_ops(torch.bfloat16, isa).sample(logits, batch)
    assert int((tokens - expected).abs().max()) <= 1
    assert int(tokens.max()) == kept - 1


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("top_k", [0, 2, 5, 900])
def test_forbidden_tokens_are_never_drawn(isa: str, top_k: int) -> None:
    logits = torch.full((200, 1100), -torch.inf)
    allowed = [0, 17, 255, 256, 1099]
    logits[:, allowed] = torch.tensor([0.0, 1.0, -1.0, -60.0, 0.5])
    batch = make_batch(200, top_k=top_k)
    batch.uniform[0], batch.uniform[1] = 0.0, 1 - 2**-53
    tokens = native_ops(torch.bfloat16, isa, 2).sample(logits, batch)
    assert set(tokens.tolist()) <= set(allowed)
    assert torch.equal(tokens, reference_ops().sample(logits, batch))


def test_row_without_a_finite_logit_is_named() -> None:
    ops = native_ops(torch.bfloat16, ISAS[0])
    for bad in (-torch.inf, torch.nan, torch.inf):
        logits = torch.zeros(3, 300)
        logits[1, :] = bad
        with pytest.raises(ValueError, match="row 1 has no finite logit"):
            ops.sample(logits, make_batch(3))


def test_token_does_not_depend_on_the_batch_or_the_threads() -> None:
    logits = logits_of(33, 5000, 3.0, 1)
    batch = make_batch(33, 0.8, 0, 0.9, 0.01)
    whole = native_ops(torch.bfloat16, ISAS[0], 3).sample(logits, batch)
    one = native_ops(torch.bfloat16, ISAS[0], 1)
    for row in range(33):
        rows = slice(row, row + 1)
        alone = SamplingBatch(
            batch.temperature[rows],
            batch.top_k[rows],
            batch.top_p[rows],
            batch.min_p[rows],
            batch.uniform[rows],
            all_greedy=False,
        )
        assert one.sample(logits[rows], alone) == whole[rows]


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=20, deadline=None)
@given(
    vocabulary=st.integers(1, 1500),
    spread=st.sampled_from([0.5, 10.0]),
    rounded=st.booleans(),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_logprobs_equal_the_reference(
    isa: str, vocabulary: int, spread: float, rounded: bool, seed: int, data: st.DataObject
) -> None:
    logits = logits_of(3, vocabulary, spread, seed)
    if rounded:  # many ties
        logits = logits.round()
    tokens = torch.tensor(
        data.draw(st.lists(st.integers(0, vocabulary - 1), min_size=3, max_size=3))
    )
    k = data.draw(st.integers(0, min(vocabulary, 25)))
    result = native_ops(torch.bfloat16, isa, 2).top_logprobs(logits, tokens, k)
    expected = reference_ops().top_logprobs(logits, tokens, k)
    torch.testing.assert_close(result[0], expected[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(result[1], expected[1])
    assert torch.equal(result[2], expected[2])
    torch.testing.assert_close(result[3], expected[3], rtol=1e-5, atol=1e-5)


def test_logprobs_of_forbidden_tokens() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0]])
    chosen, rank, ids, best = native_ops(torch.bfloat16, ISAS[0]).top_logprobs(
        logits, torch.tensor([1]), 3
    )
    assert chosen.tolist() == [-torch.inf]
    assert rank.tolist() == [3]
    assert ids.tolist() == [[0, 2, 1]]
    assert best[0, 2] == -torch.inf
