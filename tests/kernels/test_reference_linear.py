"""GEMM in tiles of fixed height: right, and the same for a row wherever it is."""

import pytest
import torch

from triolet_kernels.reference.linear import ROW_TILE, linear, linear_row_tiles

SHAPES = [(64, 96), (100, 131), (576, 960), (1536, 576), (2048, 640)]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size_in", "size_out"), SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_row_is_bitwise_the_same_in_every_batch_and_place(
    size_in: int, size_out: int, dtype: torch.dtype, threads: int
) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(size_out, size_in, generator=generator) / size_in**0.5).to(dtype)
    bias = torch.randn(size_out, generator=generator).to(dtype)
    x = torch.randn(3 * ROW_TILE + 1, size_in, generator=generator).to(dtype)
    alone = torch.cat([linear_row_tiles(row[None], weight, bias) for row in x])
    for num_rows in (2, 5, ROW_TILE, ROW_TILE + 1, len(x)):
        for first in {0, 1, len(x) - num_rows}:
            rows = slice(first, first + num_rows)
            result = linear_row_tiles(x[rows], weight, bias)
            assert torch.equal(result, alone[rows]), (num_rows, first)


@pytest.mark.parametrize("num_rows", [1, ROW_TILE, ROW_TILE + 3])
def test_tiles_compute_the_product(num_rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(7, 33, generator=generator), torch.randn(num_rows, 33)
    bias = torch.randn(7, generator=generator)
    torch.testing.assert_close(linear_row_tiles(x, weight, bias), linear(x, weight, bias))


def test_plain_product_does_depend_on_the_batch() -> None:
    """Why the tiles exist. Should a library become invariant by itself, they can go."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(960, 576, generator=generator)
    x = torch.randn(64, 576, generator=generator)
    alone = torch.cat([linear(row[None], weight) for row in x])
    assert not torch.equal(linear(x, weight), alone)
