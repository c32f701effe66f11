"""What the native kernels ask of their arguments, checked before an address is taken."""

from __future__ import annotations

import torch
from torch import Tensor


def check(name: str, x: Tensor, dtype: torch.dtype) -> None:
    """Raise ValueError unless x is contiguous and of this dtype."""
    if x.dtype is not dtype or not x.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous {dtype}, got {x.dtype} with shape "
            f"{tuple(x.shape)} and strides {x.stride()}"
        )


def check_shape(name: str, x: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless x is contiguous and of this dtype and shape."""
    check(name, x, dtype)
    if x.shape != shape:
        raise ValueError(f"{name} must be {tuple(shape)}, got {tuple(x.shape)}")


def address(x: Tensor | None) -> int:
    """Where x begins; 0 for None."""
    return 0 if x is None else x.data_ptr()


def check_int64(name: str, x: Tensor, size: int) -> None:
    """Raise ValueError unless x is contiguous int64 [size]."""
    if x.dtype is not torch.int64 or x.shape != (size,) or not x.is_contiguous():
        raise ValueError(f"{name} must be int64 [{size}], got {x.dtype} {tuple(x.shape)}")


def check_logits(logits: Tensor) -> tuple[int, int]:
    """Rows and vocabulary of logits; ValueError unless contiguous float32 [R, V]."""
    if logits.dtype is not torch.float32 or logits.dim() != 2 or not logits.is_contiguous():
        raise ValueError(
            f"logits must be contiguous float32 [R, V], got {logits.dtype} {tuple(logits.shape)}"
        )
    return int(logits.shape[0]), int(logits.shape[1])


def check_angles(cos: Tensor | None, sin: Tensor | None, rotary_dim: int) -> int:
    """Positions the tables of angles have; 0 without rotation."""
    if rotary_dim == 0:
        return 0
    half = rotary_dim // 2
    for name, table in (("cos", cos), ("sin", sin)):
        if (
            table is None
            or table.dtype is not torch.float32
            or table.dim() != 2
            or table.shape[1] != half
            or not table.is_contiguous()
        ):
            found = "None" if table is None else f"{table.dtype} {tuple(table.shape)}"
            raise ValueError(f"{name} must be contiguous float32 [positions, {half}], got {found}")
    assert cos is not None
    assert sin is not None
    return min(int(cos.shape[0]), int(sin.shape[0]))
