"""act(gate) * up, the middle of a gated MLP (Shazeer, "GLU Variants Improve Transformer")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from triolet_kernels.elementwise import map_in_place
from triolet_kernels.ops import Activation

_FUNCTIONS: Final[dict[Activation, Callable[[Tensor], Tensor]]] = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu": functional.gelu,
}


def gated_activation(gate_up: Tensor, kind: Activation, *, batch_invariant: bool) -> Tensor:
    """[T, 2 * I] = [gate, up] -> [T, I] in the same dtype, computed in float32."""
    size = gate_up.shape[-1] // 2
    function = _FUNCTIONS[kind]
    # a copy, contiguous: it is overwritten below
    gate = gate_up[:, :size].to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    if batch_invariant:
        map_in_place(lambda chunk: chunk.copy_(function(chunk)), gate)
    else:
        gate = function(gate)
    return gate.mul_(gate_up[:, size:]).to(gate_up.dtype)
