"""Root mean square norm, alone or fused with the residual stream; twin of reference/rms_norm.py.

One program per row, the row in registers: every tensor is read and written once. What the
reference rounds between its calls is rounded here at the same places.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from triolet_kernels.triton.jit import Value, fp32, i32, jit
from triolet_kernels.triton.launch_table import next_power_of_2, warps_for_row

WIDTH_MAX = 32768
"""Elements of a row that one program can hold."""


@jit
def _rms_norm(
    x_ptr: Value,
    residual_ptr: Value,
    inner_ptr: Value,
    weight_ptr: Value,
    out_ptr: Value,
    width: i32,
    eps: fp32,
    offset: fp32,
    HAS_RESIDUAL: tl.constexpr,
    HAS_INNER: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row: residual += [norm of] x; out = norm of residual (or of x without residual)."""
    start = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    valid = column < width
    x = tl.load(x_ptr + start + column, mask=valid, other=0.0).to(tl.float32)
    if HAS_INNER:
        inner = tl.load(inner_ptr + column, mask=valid, other=0.0).to(tl.float32) + offset
        x = x * tl.rsqrt(tl.sum(x * x, 0) / width + eps) * inner
        x = x.to(x_ptr.dtype.element_ty).to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + start + column, mask=valid, other=0.0).to(tl.float32)
        rounded = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + start + column, rounded, mask=valid)
        x = rounded.to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=valid, other=0.0).to(tl.float32) + offset
    x = x * tl.rsqrt(tl.sum(x * x, 0) / width + eps) * weight
    tl.store(out_ptr + start + column, x.to(out_ptr.dtype.element_ty), mask=valid)


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    offset: float = 0.0,
    *,
    residual: Tensor | None = None,
    inner_weight: Tensor | None = None,
) -> Tensor:
    """Norm of x over its last axis, or of the stream x is added to.

    Args:
        x: [..., H], contiguous, H at most `WIDTH_MAX`.
        weight: [H].
        eps: Added to the mean square.
        offset: Added to both weights.
        residual: Like x; residual += x, in place, and its norm is returned.
        inner_weight: [H]; x is normed with it before it is added. Needs `residual`.

    Returns:
        Like x.

    Raises:
        ValueError: Shapes do not fit.
    """
    width = x.shape[-1]
    if weight.shape != (width,) or width > WIDTH_MAX:
        raise ValueError(f"rms_norm: weight {tuple(weight.shape)} does not fit x {tuple(x.shape)}")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"rms_norm: residual {tuple(residual.shape)}, x {tuple(x.shape)}")
    if not x.is_contiguous() or (residual is not None and not residual.is_contiguous()):
        raise ValueError("rms_norm: x and residual must be contiguous")
    assert inner_weight is None or residual is not None
    out = x.new_empty(x.shape)
    num_rows = x.numel() // width if width else 0
    if num_rows == 0:
        return out
    _rms_norm[(num_rows,)](
        x,
        x if residual is None else residual,
        weight if inner_weight is None else inner_weight,
        weight,
        out,
        width,
        eps,
        offset,
        HAS_RESIDUAL=residual is not None,
        HAS_INNER=inner_weight is not None,
        BLOCK=next_power_of_2(width),
        num_warps=warps_for_row(width),
    )
    return out
