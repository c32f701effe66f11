"""Keys and values of one layer, by slot."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from triolet_kernels.ops import AttentionSpec


@dataclasses.dataclass(frozen=True, slots=True)
class SlotCache:
    """KV memory in the layout the reference likes: a row per head and slot.

    Attributes:
        keys: [HKV, num_blocks * BS, D]; slot = block id * BS + offset. Heads come first, so
            that a gather of slots is already a batch of matrices, one per head.
        values: Like keys.
        block_size: BS.
    """

    keys: Tensor
    values: Tensor
    block_size: int

    @property
    def num_blocks(self) -> int:
        """Blocks it holds."""
        return int(self.keys.shape[1]) // self.block_size


def allocate(
    num_blocks: int,
    block_size: int,
    spec: AttentionSpec,
    device: torch.device,
    dtype: torch.dtype,
) -> SlotCache:
    """KV memory of one layer; not touched, so that only blocks in use become resident."""
    shape = (spec.num_kv_heads, num_blocks * block_size, spec.head_dim)
    return SlotCache(
        keys=torch.empty(shape, device=device, dtype=dtype),
        values=torch.empty(shape, device=device, dtype=dtype),
        block_size=block_size,
    )


def bytes_per_block(block_size: int, spec: AttentionSpec, dtype: torch.dtype) -> int:
    """Bytes of keys and values of one block of one layer."""
    return 2 * block_size * spec.num_kv_heads * spec.head_dim * dtype.itemsize


def store(cache: SlotCache, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Write key and value [T, HKV, D] at `slots` int64 [T]."""
    cache.keys.index_copy_(1, slots, key.transpose(0, 1).to(cache.keys.dtype))
    cache.values.index_copy_(1, slots, value.transpose(0, 1).to(cache.values.dtype))
