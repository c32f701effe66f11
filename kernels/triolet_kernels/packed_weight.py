"""Weights in the order in which the native kernels read them (cpu/common/pack.h)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from triolet_kernels._native import Kernels, packed_bytes, scale_bytes

WeightFormat = Literal["float32", "bfloat16", "w8a8", "w4a8"]
"""The type of the products: that of the weight, or bytes of both sides (w8a8: int8 weights, a
scale per output; w4a8: 4-bit weights, a scale per output and 32 inputs; int8 activations with a
scale per row, found as the row comes)."""

_FORMATS: dict[WeightFormat, int] = {"float32": 0, "bfloat16": 1, "w8a8": 2, "w4a8": 3}
_DTYPES = {torch.float32: 0, torch.bfloat16: 1}
_PANEL = 64  # outputs are packed, and padded, by so many


def dtype_code(dtype: torch.dtype) -> int:
    """What the native module calls `dtype`."""
    return _DTYPES[dtype]


class PackedWeight:
    """A weight [N, K] in packed form; the tensor it came from is not kept.

    Args:
        kernels: Packs, on its threads.
        weight: float32 or bfloat16 [N, K], contiguous, on the CPU.
        weight_format: "float32" and "bfloat16" must be the weight's own dtype.
        bias: Any float dtype [N], or None.

    Raises:
        ValueError: Shapes or dtypes do not fit.
    """

    __slots__ = ("address", "bias", "data", "format_code", "k", "n", "scales", "sums")

    def __init__(
        self,
        kernels: Kernels,
        weight: Tensor,
        weight_format: WeightFormat,
        bias: Tensor | None = None,
    ) -> None:
        if weight.dim() != 2 or 0 in weight.shape:
            raise ValueError(f"weight must be [N, K] and not empty, got {tuple(weight.shape)}")
        if weight.dtype not in _DTYPES:
            raise ValueError(f"weight must be float32 or bfloat16, not {weight.dtype}")
        self.n, self.k = weight.shape
        self.format_code = _FORMATS[weight_format]
        columns = -(-self.n // _PANEL) * _PANEL
        self.data = torch.empty(packed_bytes(self.format_code, self.n, self.k), dtype=torch.uint8)
        self.scales = torch.empty(scale_bytes(self.format_code, self.n, self.k), dtype=torch.uint8)
        self.sums = torch.empty(columns if weight_format == "w8a8" else 0, dtype=torch.int32)
        self.bias: Tensor | None = None
        if bias is not None:
            if bias.shape != (self.n,):
                raise ValueError(f"bias must be [{self.n}], got {tuple(bias.shape)}")
            self.bias = torch.zeros(columns)
            self.bias[: self.n] = bias
        self.address = self.data.data_ptr()
        weight = weight.contiguous()
        kernels.pack(
            self.format_code,
            weight.data_ptr(),
            _DTYPES[weight.dtype],
            self.n,
            self.k,
            self.address,
            self.scales.data_ptr(),
            self.sums.data_ptr(),
        )

    @property
    def num_bytes(self) -> int:
        """Bytes it occupies."""
        parts = (self.data, self.scales, self.sums)
        return sum(part.numel() * part.element_size() for part in parts)


class PackedLinear:
    """x [T, K] -> x @ weight.T + bias, [T, N], on a packed weight.

    Args:
        kernels: Compute.
        weight: Shared, not copied.
        dtype: Of x.
        float_output: Results in float32 instead of `dtype`.
    """

    __slots__ = (
        "_arguments",
        "_code",
        "_dtype",
        "_float_output",
        "_kernels",
        "_out_dtype",
        "weight",
    )

    def __init__(
        self, kernels: Kernels, weight: PackedWeight, dtype: torch.dtype, *, float_output: bool
    ) -> None:
        self.weight = weight
        self._kernels = kernels
        self._dtype = dtype
        self._code = _DTYPES[dtype]
        self._float_output = float_output
        self._out_dtype = torch.float32 if float_output else dtype
        bias = 0 if weight.bias is None else weight.bias.data_ptr()
        self._arguments = (
            weight.address,
            weight.scales.data_ptr(),
            weight.sums.data_ptr(),
            bias,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Compute [T, N] from x [T, K], contiguous.

        Raises:
            ValueError: x has another width or dtype, or is not contiguous.
        """
        weight = self.weight
        if x.dtype is not self._dtype or x.shape[-1] != weight.k or not x.is_contiguous():
            raise ValueError(
                f"x must be contiguous {self._dtype} [T, {weight.k}], got {x.dtype} "
                f"{tuple(x.shape)} with strides {x.stride()}"
            )
        rows = x.numel() // weight.k
        y = torch.empty((*x.shape[:-1], weight.n), dtype=self._out_dtype)
        packed, scales, sums, bias = self._arguments
        self._kernels.linear(
            weight.format_code,
            x.data_ptr(),
            packed,
            scales,
            sums,
            bias,
            y.data_ptr(),
            rows,
            weight.n,
            weight.k,
            self._code,
            self._float_output,
        )
        return y


class PackedEmbedding:
    """ids int64 [T] -> rows [T, H] of a packed table, in the model's dtype."""

    __slots__ = ("_code", "_dtype", "_kernels", "_scales", "weight")

    def __init__(self, kernels: Kernels, weight: PackedWeight, dtype: torch.dtype) -> None:
        self.weight = weight
        self._kernels = kernels
        self._dtype = dtype
        self._code = _DTYPES[dtype]
        self._scales = weight.scales.data_ptr() if weight.format_code == _FORMATS["w8a8"] else 0

    def __call__(self, ids: Tensor) -> Tensor:
        """Look up [T, H].

        Raises:
            ValueError: ids is not contiguous int64.
            IndexError: An id is not in the table.
        """
        if ids.dtype is not torch.int64 or not ids.is_contiguous():
            raise ValueError(f"ids must be contiguous int64, got {ids.dtype}")
        weight = self.weight
        out = torch.empty((*ids.shape, weight.k), dtype=self._dtype)
        self._kernels.embedding(
            ids.data_ptr(),
            weight.address,
            self._scales,
            out.data_ptr(),
            ids.numel(),
            weight.n,
            weight.k,
            self._code,
        )
        return out
