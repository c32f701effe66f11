"""Penalties and bit masks of the reference against loops over tokens."""

import math

import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from support.penalties import penalised_by_loop, random_penalties
from triolet_kernels.reference.bitmask import ban
from triolet_kernels.reference.penalties import penalize


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 4))
def test_penalties_equal_a_loop(seed: int, rows: int) -> None:
    """With a pending token that is counted, that is new, and without one."""
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(seed))
    batch = random_penalties(seed, rows, num_logit_rows=5, width=40)
    expected = penalised_by_loop(logits, batch)
    penalize(logits, batch)
    torch.testing.assert_close(logits, expected)


def test_a_row_without_tokens_and_without_a_pending_one_is_left_alone() -> None:
    logits = torch.randn(2, 8)
    batch = random_penalties(0, 1, num_logit_rows=2, width=8, num_tokens=0, pending=-1)
    before = logits.clone()
    penalize(logits, batch)
    assert torch.equal(logits, before)


def allowed_by_loop(logits: Tensor, rows: Tensor, allowed: Tensor) -> Tensor:
    out = logits.clone()
    for row, mask in zip(rows.tolist(), allowed.tolist(), strict=True):
        for token in range(logits.shape[1]):
            byte = mask[token // 8] if token // 8 < len(mask) else 0
            if not byte >> token % 8 & 1:
                out[row, token] = -math.inf
    return out


@settings(max_examples=40, deadline=None)
@given(width=st.integers(1, 40), num_bytes=st.integers(1, 6), seed=st.integers(0, 1000))
def test_bans_equal_a_loop(width: int, num_bytes: int, seed: int) -> None:
    """Masks may be shorter than the vocabulary and longer."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, width, generator=generator)
    allowed = torch.randint(0, 256, (2, num_bytes), generator=generator, dtype=torch.uint8)
    rows = torch.tensor([2, 0])
    expected = allowed_by_loop(logits, rows, allowed)
    ban(logits, rows, allowed)
    assert torch.equal(logits, expected)
