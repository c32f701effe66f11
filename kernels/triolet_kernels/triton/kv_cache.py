"""Keys and values of one layer by block; twin of reference/kv_cache.py.

A block of a head is BS * D contiguous elements: 4 KiB for 16 tokens of 128 bfloat16 values,
which is one burst, and a matrix that a TMA descriptor can name.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from triolet_kernels.ops import AttentionSpec


@dataclasses.dataclass(frozen=True, slots=True)
class BlockCache:
    """KV memory as the Triton kernels like it.

    Attributes:
        keys: [num_blocks, HKV, BS, D].
        values: Like keys.
        block_size: BS.
    """

    keys: Tensor
    values: Tensor
    block_size: int

    @property
    def num_blocks(self) -> int:
        """Blocks it holds."""
        return int(self.keys.shape[0])


def allocate(
    num_blocks: int,
    block_size: int,
    spec: AttentionSpec,
    device: torch.device,
    dtype: torch.dtype,
) -> BlockCache:
    """KV memory of one layer, zeroed: that takes milliseconds, and what is there is a number."""
    shape = (num_blocks, spec.num_kv_heads, block_size, spec.head_dim)
    return BlockCache(
        keys=torch.zeros(shape, device=device, dtype=dtype),
        values=torch.zeros(shape, device=device, dtype=dtype),
        block_size=block_size,
    )


def bytes_per_block(block_size: int, spec: AttentionSpec, dtype: torch.dtype) -> int:
    """Bytes of keys and values of one block of one layer."""
    return 2 * block_size * spec.num_kv_heads * spec.head_dim * dtype.itemsize
