"""x @ weight.T + bias, at once or in calls of a fixed number of rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# Rows per call in batch-invariant mode. A GEMM library picks its kernel, and with it the order
# of its sums, by the number of rows; rows of one call all get the same order, wherever they
# are in it (tests/kernels/test_reference_linear.py). 16 is the height of an AMX tile.
ROW_TILE = 16


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [T, K], weight [N, K], bias [N] -> [T, N]."""
    return functional.linear(x, weight, bias)


def linear_row_tiles(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Like `linear`, bitwise the same for a row whatever the other rows are."""
    num_rows = x.shape[0]
    out = torch.empty((num_rows, weight.shape[0]), dtype=x.dtype, device=x.device)
    for start in range(0, num_rows, ROW_TILE):
        rows = x[start : start + ROW_TILE]
        missing = ROW_TILE - rows.shape[0]
        if missing:
            rows = functional.pad(rows, (0, 0, 0, missing))
        tile = functional.linear(rows.contiguous(), weight, bias)
        out[start : start + ROW_TILE] = tile[: ROW_TILE - missing]
    return out
