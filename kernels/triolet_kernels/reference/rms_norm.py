"""Root mean square norm (Zhang and Sennrich, 2019), computed in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * (weight + offset) over the last axis.

    Args:
        x: [..., H]; a view is fine.
        weight: [H].
        eps: Added to the mean square.
        offset: Added to the weight; gemma stores weights around 0 and adds 1.

    Returns:
        Like x, contiguous, in its dtype; rounded once.
    """
    wide = x.to(torch.float32)
    factor = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    scale = weight.to(torch.float32)
    if offset:
        scale = scale + offset
    return (wide * factor * scale).to(x.dtype)
