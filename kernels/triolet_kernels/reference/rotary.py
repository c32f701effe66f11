"""Rotary position embedding (Su et al., RoFormer), half-split layout, computed in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the leading 2 * R dimensions of every head; the rest passes through.

    Dimension i < R pairs with i + R: (a, b) -> (a cos - b sin, b cos + a sin).

    Args:
        x: float32 [T, heads, D].
        cos: float32 [T, R], of each row's position.
        sin: Like cos.

    Returns:
        float32 [T, heads, D].
    """
    half = cos.shape[-1]
    cos, sin = cos[:, None, :], sin[:, None, :]
    first, second = x[..., :half], x[..., half : 2 * half]
    parts = [first * cos - second * sin, second * cos + first * sin]
    if 2 * half < x.shape[-1]:
        parts.append(x[..., 2 * half :])
    return torch.cat(parts, dim=-1)
