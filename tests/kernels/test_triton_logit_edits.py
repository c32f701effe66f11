"""penalties and bitmask in Triton equal the reference."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from support.penalties import penalised_by_loop, random_penalties
from support.triton_kernels import interpreted, triton_ops
from triolet_kernels.reference.bitmask import ban as reference_ban

pytestmark = interpreted


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 3), width=st.sampled_from([40, 1500]))
def test_penalties_equal_the_loop(seed: int, rows: int, width: int) -> None:
    """With a pending token that is counted, that is new, and without one."""
    logits = torch.randn(3, width, generator=torch.Generator().manual_seed(seed))
    batch = random_penalties(seed, rows, num_logit_rows=3, width=width)
    expected = penalised_by_loop(logits, batch)
    triton_ops().penalize(logits, batch)
    torch.testing.assert_close(logits, expected)


@settings(max_examples=20, deadline=None)
@given(
    width=st.sampled_from([1, 31, 2048, 2049, 5000]),
    spare=st.integers(-4, 4),
    seed=st.integers(0, 1000),
)
def test_bans_equal_the_reference(width: int, spare: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, width, generator=generator)
    num_bytes = max(1, width // 8 + spare)
    allowed = torch.randint(0, 256, (2, num_bytes), generator=generator, dtype=torch.uint8)
    rows = torch.tensor([2, 0])
    expected = logits.clone()
    reference_ban(expected, rows, allowed)
    triton_ops().ban(logits, rows, allowed)
    assert torch.equal(logits, expected)


def test_what_does_not_fit_is_refused() -> None:
    logits, rows = torch.zeros(2, 8), torch.tensor([0])
    with pytest.raises(ValueError, match="contiguous float32"):
        triton_ops().ban(logits.T, rows, torch.zeros(1, 1, dtype=torch.uint8))
    with pytest.raises(ValueError, match="uint8"):
        triton_ops().ban(logits, rows, torch.zeros(1, 1))
    with pytest.raises(ValueError, match="contiguous float32"):
        triton_ops().penalize(logits.T, random_penalties(0, 1, num_logit_rows=8, width=2))
