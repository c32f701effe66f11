"""Native norms and activations against the reference."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from support.native_kernels import (
    DTYPES,
    TOLERANCE,
    isas,
    native_ops,
    reference_ops,
    relative_error,
)
from triolet_kernels.ops import Activation

ISAS = isas()
KINDS: list[Activation] = ["silu", "gelu_tanh", "gelu"]


def random(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=10, deadline=None)
@given(
    rows=st.integers(1, 40),
    hidden=st.integers(1, 150),
    offset=st.sampled_from([0.0, 1.0]),
    threads=st.integers(1, 4),
)
def test_norms_equal_the_reference(
    isa: str, dtype: torch.dtype, rows: int, hidden: int, offset: float, threads: int
) -> None:
    ops, reference = native_ops(dtype, isa, threads), reference_ops()
    x, residual = (random(rows, hidden, seed=i, dtype=dtype) for i in (0, 1))
    inner, weight = (random(hidden, seed=i, dtype=dtype) for i in (2, 3))
    wide = [t.to(torch.float32) for t in (x, residual, inner, weight)]
    tolerance = 2 * TOLERANCE[dtype]

    result = ops.rms_norm(x, weight, 1e-6, offset)
    assert relative_error(result, reference.rms_norm(wide[0], wide[3], 1e-6, offset)) < tolerance

    sums, expected_sums = residual.clone(), wide[1].clone()
    result = ops.add_rms_norm(x, sums, weight, 1e-5, offset)
    expected = reference.add_rms_norm(wide[0], expected_sums, wide[3], 1e-5, offset)
    assert relative_error(result, expected) < tolerance
    assert relative_error(sums, expected_sums) < tolerance

    sums, expected_sums = residual.clone(), wide[1].clone()
    result = ops.norm_add_rms_norm(x, sums, inner, weight, 1e-6, offset)
    expected = reference.norm_add_rms_norm(wide[0], expected_sums, wide[2], wide[3], 1e-6, offset)
    assert relative_error(result, expected) < 2 * tolerance
    assert relative_error(sums, expected_sums) < tolerance


def test_norm_per_head_is_over_the_last_axis() -> None:
    ops = native_ops(torch.float32, ISAS[0])
    x, weight = random(5, 3, 40, seed=0, dtype=torch.float32), torch.ones(40)
    expected = reference_ops().rms_norm(x, weight, 1e-6)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-6), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, deadline=None)
@given(rows=st.integers(1, 20), width=st.integers(1, 150), scale=st.sampled_from([1.0, 30.0]))
def test_gated_activation_equals_the_reference(
    isa: str, dtype: torch.dtype, kind: Activation, rows: int, width: int, scale: float
) -> None:
    gate_up = random(rows, 2 * width, seed=rows, dtype=dtype) * scale
    result = native_ops(dtype, isa, 2).gated_activation(gate_up, kind)
    expected = reference_ops().gated_activation(gate_up.to(torch.float32), kind)
    assert relative_error(result, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_bitwise_independent(isa: str, dtype: torch.dtype) -> None:
    x, weight = random(50, 100, seed=0, dtype=dtype), random(100, seed=1, dtype=dtype)
    one, many = native_ops(dtype, isa, 1), native_ops(dtype, isa, 3)
    alone = torch.cat([one.rms_norm(row[None], weight, 1e-6) for row in x])
    assert torch.equal(many.rms_norm(x, weight, 1e-6), alone)
    alone = torch.cat([one.gated_activation(row[None], "silu") for row in x])
    assert torch.equal(many.gated_activation(x, "silu"), alone)


def test_bfloat16_rounds_to_nearest_even_and_keeps_nan() -> None:
    """Through the residual: residual += x is rounded to bfloat16 as torch rounds."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(8, 64, generator=generator) * 100).to(torch.bfloat16)
    residual = torch.randn(8, 64, generator=generator).to(torch.bfloat16)
    residual[0, 0], residual[1, 1], residual[2, 2] = float("nan"), float("inf"), 1e-39
    x[2, 2] = 0.0
    for isa in ISAS:
        sums = residual.clone()
        native_ops(torch.bfloat16, isa).add_rms_norm(x, sums, torch.ones(64).bfloat16(), 1e-6)
        torch.testing.assert_close(sums, residual + x, rtol=0, atol=0, equal_nan=True)


def test_wrong_dtype_and_shape_are_named() -> None:
    ops = native_ops(torch.bfloat16, ISAS[0])
    x = torch.zeros(2, 8, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"weight must be contiguous torch\.bfloat16"):
        ops.rms_norm(x, torch.ones(8), 1e-6)
    with pytest.raises(ValueError, match=r"weight must be \(8,\)"):
        ops.rms_norm(x, torch.ones(7).bfloat16(), 1e-6)
    with pytest.raises(ValueError, match="x must be contiguous"):
        ops.rms_norm(x.T, torch.ones(2).bfloat16(), 1e-6)
    with pytest.raises(ValueError, match="even width"):
        ops.gated_activation(torch.zeros(2, 7).bfloat16(), "silu")
