"""act(gate) * up; twin of reference/activation.py. One program per row and 1024 columns."""

from __future__ import annotations

from typing import Final

import torch
import triton.language as tl
from torch import Tensor

from triolet_kernels.ops import Activation
from triolet_kernels.triton.functions import exp, tanh
from triolet_kernels.triton.jit import Value, i32, jit
from triolet_kernels.triton.launch_table import cdiv

_KINDS: Final[dict[Activation, int]] = {"silu": 0, "gelu_tanh": 1, "gelu": 2}
_BLOCK = 1024


@jit
def _gated_activation(
    gate_up_ptr: Value,
    out_ptr: Value,
    width: i32,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """out [T, I] = act(gate) * up, with gate_up [T, 2 * I]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = column < width
    source = gate_up_ptr + row * (2 * width) + column
    gate = tl.load(source, mask=valid, other=0.0).to(tl.float32)
    up = tl.load(source + width, mask=valid, other=0.0).to(tl.float32)
    if KIND == 0:
        gate = gate / (1.0 + exp(-gate))
    elif KIND == 1:
        # 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), Hendrycks and Gimpel, 2016
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        gate = 0.5 * gate * (1.0 + tanh(inner))
    else:
        gate = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    tl.store(out_ptr + row * width + column, (gate * up).to(out_ptr.dtype.element_ty), mask=valid)


def gated_activation(gate_up: Tensor, kind: Activation) -> Tensor:
    """[T, 2 * I] = [gate, up], contiguous -> [T, I] in the same dtype, computed in float32.

    Raises:
        ValueError: The last axis is odd, or the tensor is not contiguous.
    """
    num_rows, twice = gate_up.shape
    if twice % 2 or not gate_up.is_contiguous():
        raise ValueError(f"gated_activation: [T, 2 * I], contiguous, not {tuple(gate_up.shape)}")
    width = twice // 2
    out = torch.empty((num_rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        _gated_activation[(num_rows, cdiv(width, _BLOCK))](
            gate_up,
            out,
            width,
            KIND=_KINDS[kind],
            BLOCK=_BLOCK,
            num_warps=4,
        )
    return out
