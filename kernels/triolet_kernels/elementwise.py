"""Elementwise functions whose bits do not depend on the shape of the tensor.

torch computes exp, tanh and their like with vector code, and the elements that are left over
at the end of a thread's share with scalar code that rounds differently. Where that end is
depends on the number of elements and of threads, so a row's bits would depend on its batch.
Calls of a fixed size that is a whole number of vectors, and too small to be shared between
threads, have no left-overs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# torch shares an elementwise call between threads above 32768 elements (at::internal::GRAIN_SIZE)
# or, for gelu, 24576 (GELU_MIN_ELEMENTS_FOR_MULTI_THREADING). exp and tanh are shared earlier, but
# they take left-overs through vector code too. Vector loops take at most 128 elements a turn.
_CHUNK = 16384
_VECTOR = 128


def map_in_place(function: Callable[[Tensor], object], x: Tensor) -> Tensor:
    """Apply an in-place elementwise function so that every element takes the same code path.

    Args:
        function: Such as `Tensor.exp_` or `Tensor.tanh_`; changes its argument in place.
        x: Contiguous, any shape; overwritten.

    Returns:
        x.
    """
    if x.device.type != "cpu":
        function(x)
        return x
    flat = x.view(-1)
    whole = flat.numel() // _VECTOR * _VECTOR
    for start in range(0, whole, _CHUNK):
        function(flat[start : min(start + _CHUNK, whole)])
    if whole < flat.numel():
        padded = torch.zeros(_VECTOR, dtype=x.dtype)
        rest = flat[whole:]
        padded[: rest.numel()] = rest
        function(padded)
        rest.copy_(padded[: rest.numel()])
    return x
