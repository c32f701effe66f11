"""Native linears against plain torch, and a row's bits against its company."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from support.native_kernels import DTYPES, TOLERANCE, isas, native_ops, relative_error
from triolet_kernels.native import Quantization

ISAS = isas()
SIZES = st.integers(1, 200)
# Of the products with weights and activations in bytes, gaussian inputs.
QUANTIZED_TOLERANCE: dict[Quantization, float] = {"w8a8": 0.03, "w4a8": 0.16}
FORMATS: list[Quantization | None] = [None, "w8a8", "w4a8"]


def random(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = x.to(torch.float64) @ weight.to(torch.float64).T
    return y if bias is None else y + bias.to(torch.float64)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 70),
    n=SIZES,
    k=SIZES,
    with_bias=st.booleans(),
    threads=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_linear_is_the_product(
    isa: str,
    dtype: torch.dtype,
    rows: int,
    n: int,
    k: int,
    with_bias: bool,
    threads: int,
    seed: int,
) -> None:
    ops = native_ops(dtype, isa, threads)
    weight, x = random(n, k, seed=seed, dtype=dtype), random(rows, k, seed=seed + 1, dtype=dtype)
    bias = random(n, seed=seed + 2, dtype=dtype) if with_bias else None
    expected = product(x, weight, bias)
    assert relative_error(ops.linear(weight, bias)(x), expected) < TOLERANCE[dtype]
    logits = ops.head(weight, bias)(x)
    assert logits.dtype is torch.float32
    assert relative_error(logits, expected) < 3e-6


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quantization", QUANTIZED_TOLERANCE)
@settings(max_examples=10, deadline=None)
@given(rows=st.integers(1, 40), n=SIZES, k=st.integers(32, 300), seed=st.integers(0, 99))
def test_quantized_linear_is_close_to_the_product(
    isa: str, quantization: Quantization, rows: int, n: int, k: int, seed: int
) -> None:
    ops = native_ops(torch.bfloat16, isa, 2, quantization)
    weight = random(n, k, seed=seed, dtype=torch.bfloat16)
    x = random(rows, k, seed=seed + 1, dtype=torch.bfloat16)
    error = relative_error(ops.linear(weight)(x), product(x, weight, None))
    assert error < QUANTIZED_TOLERANCE[quantization]


@pytest.mark.parametrize("quantization", QUANTIZED_TOLERANCE)
def test_quantized_linears_are_bitwise_equal_on_every_isa(quantization: Quantization) -> None:
    """Integer sums are exact, and what follows them is the same arithmetic everywhere."""
    weight = random(131, 259, seed=0, dtype=torch.bfloat16)
    x = random(37, 259, seed=1, dtype=torch.bfloat16)
    first, *others = (native_ops(torch.bfloat16, i, 1, quantization).head(weight)(x) for i in ISAS)
    for other in others:
        if quantization == "w8a8":
            assert torch.equal(first, other)
        else:  # the portable build has no fused multiply-add for the sum over groups
            torch.testing.assert_close(first, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quantization", FORMATS)
def test_row_is_bitwise_the_same_in_every_batch_place_and_pool(
    isa: str, dtype: torch.dtype, quantization: Quantization | None
) -> None:
    weight = random(200, 328, seed=0, dtype=dtype)
    bias = random(200, seed=1, dtype=dtype)
    x = random(75, 328, seed=2, dtype=dtype)
    linears = [native_ops(dtype, isa, t, quantization).linear(weight, bias) for t in (1, 2, 3)]
    alone = torch.cat([linears[0](row[None]) for row in x])
    for linear in linears:
        for rows in (2, 5, 16, 17, 32, 33, 64, 75):
            for first in {0, 1, 75 - rows}:
                result = linear(x[first : first + rows].contiguous())
                assert torch.equal(result, alone[first : first + rows]), (rows, first)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("quantization", FORMATS)
def test_rows_with_nan_or_infinity_leave_the_others_alone(
    isa: str, quantization: Quantization | None
) -> None:
    linear = native_ops(torch.bfloat16, isa, 2, quantization).linear(
        random(70, 96, seed=0, dtype=torch.bfloat16)
    )
    x = random(40, 96, seed=1, dtype=torch.bfloat16)
    clean = linear(x)
    poisoned = x.clone()
    poisoned[3, 5] = float("nan")
    poisoned[20, 95] = float("inf")
    result = linear(poisoned)
    sound = [row for row in range(40) if row not in (3, 20)]
    assert torch.equal(result[sound], clean[sound])
    assert result[3].isnan().all()
    assert not result[20].isfinite().any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_look_up_in_the_packed_table_is_exact(isa: str, dtype: torch.dtype) -> None:
    table = random(131, 77, seed=0, dtype=dtype)
    ids = torch.randint(0, 131, (40,), generator=torch.Generator().manual_seed(1))
    look_up, head = native_ops(dtype, isa, 2).tied_embedding(table, head=True)
    assert head is not None
    assert torch.equal(look_up(ids), table[ids])
    x = random(3, 77, seed=2, dtype=dtype)
    assert torch.equal(head(x), native_ops(dtype, isa).head(table)(x))
    alone, none = native_ops(dtype, isa).tied_embedding(table, head=False)
    assert none is None
    assert torch.equal(alone(ids), table[ids])


def test_quantized_table_gives_what_its_head_multiplies() -> None:
    table = random(131, 96, seed=0, dtype=torch.bfloat16)
    look_up, _ = native_ops(torch.bfloat16, ISAS[0], 1, "w8a8").tied_embedding(table, head=True)
    rows = look_up(torch.arange(131))
    step = table.abs().amax(1, keepdim=True).to(torch.float32) / 127
    error = (rows.to(torch.float32) - table.to(torch.float32)).abs()
    assert (error <= step).all()  # half a step, and half a bfloat16 digit of up to 127 steps


def test_bad_input_is_named() -> None:
    ops = native_ops(torch.bfloat16, ISAS[0])
    linear = ops.linear(torch.zeros(8, 16))
    with pytest.raises(ValueError, match=r"x must be contiguous torch.bfloat16 \[T, 16\]"):
        linear(torch.zeros(2, 16))
    with pytest.raises(ValueError, match=r"\[T, 16\]"):
        linear(torch.zeros(2, 15, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"bias must be \[8\]"):
        ops.linear(torch.zeros(8, 16), torch.zeros(9))
    with pytest.raises(ValueError, match=r"weight must be \[N, K\]"):
        ops.linear(torch.zeros(8))
    look_up, _ = ops.tied_embedding(torch.zeros(8, 16), head=False)
    for bad in (-1, 8):
        with pytest.raises(IndexError, match=f"token id {bad} is not in 0..7"):
            look_up(torch.tensor([0, bad]))
    with pytest.raises(ValueError, match="ids must be contiguous int64"):
        look_up(torch.tensor([0], dtype=torch.int32))
