"""`TritonOps`: the operations of `triolet_kernels.ops.Ops` on CUDA devices.

Products with weights are cuBLAS's, through torch; everything else is a Triton kernel in
`triton/`. With TRITON_INTERPRET=1 the same kernels run on CPU tensors, which is how they are
tested where there is no GPU.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn import functional

from triolet_kernels.ops import (
    Activation,
    AttentionBatch,
    AttentionSpec,
    KVCache,
    Linear,
    PenaltyBatch,
    SamplingBatch,
)
from triolet_kernels.reference.linear import linear, linear_row_tiles

if TYPE_CHECKING:
    from triolet_kernels.triton.kv_cache import BlockCache
    from triolet_kernels.triton.launch_table import Capability

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_CAPABILITY_MIN = (8, 0)
_HEAD_DIM_MAX = 512


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why the Triton kernels cannot run on this device in this dtype; None if they can."""
    if device.type != "cuda":
        return f"the Triton kernels are for CUDA devices, not for {device.type}"
    if dtype not in _DTYPES:
        return f"the Triton kernels compute in float32, bfloat16 and float16, not in {dtype}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed, so plain torch computes; install triolet[gpu]"
    capability = torch.cuda.get_device_capability(device)
    if capability < _CAPABILITY_MIN:
        return (
            f"the Triton kernels need compute capability 8.0 or newer, and {device} has "
            f"{capability[0]}.{capability[1]}"
        )
    return None


def triton_ops(
    device: torch.device, dtype: torch.dtype, *, batch_invariant: bool = False
) -> TritonOps:
    """The Triton implementation for a CUDA device.

    Raises:
        ValueError: See `unavailable`.
    """
    if (reason := unavailable(device, dtype)) is not None:
        raise ValueError(reason)
    capability = torch.cuda.get_device_capability(device)
    return TritonOps(device, dtype, capability, batch_invariant=batch_invariant)


class TritonOps:
    """Triton kernels and cuBLAS; the meaning of every operation is in `Ops`.

    A row that has no best logit gets token -1 from `sample`. Nothing here waits for the device,
    so that every operation can be captured in a CUDA graph.

    Args:
        device: Where tensors live; "cpu" works under TRITON_INTERPRET=1.
        dtype: float32, bfloat16 or float16.
        capability: Compute capability, the key of the launch table.
        batch_invariant: Products in calls of a fixed number of rows, and one order of sums for
            prefill and decode. Slower: for those who need the same bits every time.
        upcast: Multiply in float32, as the interpreter needs it.
    """

    name = "triton"

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        capability: Capability,
        *,
        batch_invariant: bool = False,
        upcast: bool = False,
    ) -> None:
        if dtype not in _DTYPES:
            raise ValueError(f"dtype must be float32, bfloat16 or float16, not {dtype}")
        self.device = device
        self.dtype = dtype
        self.batch_invariant = batch_invariant
        self.capability = capability
        self._upcast = upcast
        self._linear = linear_row_tiles if batch_invariant else linear

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """See `Ops.linear`."""
        weight, bias = self._own(weight), None if bias is None else self._own(bias)
        return lambda x: self._linear(x, weight, bias)

    def head(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """See `Ops.head`. Logits are rounded to the model's dtype, as the reference's are."""
        project = self.linear(weight, bias)
        return lambda x: project(x).to(torch.float32)

    def tied_embedding(
        self, weight: Tensor, *, head: bool
    ) -> tuple[Callable[[Tensor], Tensor], Linear | None]:
        """See `Ops.tied_embedding`."""
        weight = self._own(weight)
        look_up = lambda ids: functional.embedding(ids, weight)  # noqa: E731
        return look_up, self.head(weight) if head else None

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        """See `Ops.rms_norm`."""
        from triolet_kernels.triton.rms_norm import rms_norm

        return rms_norm(x, weight, eps, offset)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0
    ) -> Tensor:
        """See `Ops.add_rms_norm`."""
        from triolet_kernels.triton.rms_norm import rms_norm

        return rms_norm(x, weight, eps, offset, residual=residual)

    def norm_add_rms_norm(
        self,
        x: Tensor,
        residual: Tensor,
        inner_weight: Tensor,
        weight: Tensor,
        eps: float,
        offset: float = 0.0,
    ) -> Tensor:
        """See `Ops.norm_add_rms_norm`."""
        from triolet_kernels.triton.rms_norm import rms_norm

        return rms_norm(x, weight, eps, offset, residual=residual, inner_weight=inner_weight)

    def gated_activation(self, gate_up: Tensor, kind: Activation) -> Tensor:
        """See `Ops.gated_activation`."""
        from triolet_kernels.triton.activation import gated_activation

        return gated_activation(gate_up, kind)

    def allocate_kv(self, num_blocks: int, block_size: int, spec: AttentionSpec) -> KVCache:
        """See `Ops.allocate_kv`."""
        from triolet_kernels.triton import kv_cache

        if spec.head_dim > _HEAD_DIM_MAX:
            raise ValueError(
                f"head_dim {spec.head_dim} is larger than the {_HEAD_DIM_MAX} of these kernels"
            )
        return kv_cache.allocate(num_blocks, block_size, spec, self.device, self.dtype)

    def kv_bytes_per_block(self, block_size: int, spec: AttentionSpec) -> int:
        """See `Ops.kv_bytes_per_block`."""
        from triolet_kernels.triton import kv_cache

        return kv_cache.bytes_per_block(block_size, spec, self.dtype)

    def rope_and_store(
        self,
        qkv: Tensor,
        spec: AttentionSpec,
        batch: AttentionBatch,
        cache: KVCache,
        cos: Tensor | None,
        sin: Tensor | None,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
    ) -> Tensor:
        """See `Ops.rope_and_store`."""
        from triolet_kernels.triton.rope_and_store import rope_and_store

        blocks = cast("BlockCache", cache)
        return rope_and_store(qkv, spec, batch, blocks, cos, sin, q_norm, k_norm)

    def paged_attention(
        self,
        q: Tensor,
        spec: AttentionSpec,
        batch: AttentionBatch,
        cache: KVCache,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See `Ops.paged_attention`."""
        from triolet_kernels.triton.paged_attention import paged_attention

        return paged_attention(
            q,
            spec,
            batch,
            cast("BlockCache", cache),
            sinks,
            self.capability,
            batch_invariant=self.batch_invariant,
            upcast=self._upcast,
        )

    def penalize(self, logits: Tensor, batch: PenaltyBatch) -> None:
        """See `Ops.penalize`."""
        from triolet_kernels.triton import penalties

        penalties.penalize(logits, batch)

    def ban(self, logits: Tensor, rows: Tensor, allowed: Tensor) -> None:
        """See `Ops.ban`."""
        from triolet_kernels.triton import bitmask

        bitmask.ban(logits, rows, allowed)

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """See `Ops.sample`."""
        from triolet_kernels.triton.sample import sample

        return sample(logits, batch)

    def top_logprobs(
        self, logits: Tensor, tokens: Tensor, k: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See `Ops.top_logprobs`."""
        from triolet_kernels.triton.top_logprobs import top_logprobs

        return top_logprobs(logits, tokens, k)

    def _own(self, weight: Tensor) -> Tensor:
        return weight.to(self.device, self.dtype).contiguous()
