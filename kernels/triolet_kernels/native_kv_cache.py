"""Keys and values of one layer in the order in which the native attention reads them."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from triolet_kernels.ops import AttentionSpec

_BLOCK_SIZES = (8, 16, 32, 64, 128)
_MAX_HEAD_DIM = 512
_MAX_GROUP = 128


@dataclasses.dataclass(frozen=True, slots=True)
class NativeKVCache:
    """Keys and values of one layer, W = 2 for bfloat16 and 1 for float32.

    Attributes:
        keys: [num_blocks, HKV, D / W, BS, W].
        values: [num_blocks, HKV, BS / W, D, W].
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
    num_blocks: int, block_size: int, spec: AttentionSpec, dtype: torch.dtype
) -> NativeKVCache:
    """KV memory of one layer, not touched yet.

    Raises:
        ValueError: The kernels do not take such blocks or heads.
    """
    if block_size not in _BLOCK_SIZES:
        raise ValueError(f"block_size must be one of {_BLOCK_SIZES}, not {block_size}")
    if spec.head_dim % 8 != 0 or not 8 <= spec.head_dim <= _MAX_HEAD_DIM:
        raise ValueError(
            f"head_dim must be a multiple of 8 up to {_MAX_HEAD_DIM}, not {spec.head_dim}"
        )
    if spec.num_heads % spec.num_kv_heads or spec.num_heads // spec.num_kv_heads > _MAX_GROUP:
        raise ValueError(
            f"num_heads must be 1 to {_MAX_GROUP} times num_kv_heads, not "
            f"{spec.num_heads} and {spec.num_kv_heads}"
        )
    word = 1 if dtype is torch.float32 else 2
    heads, dim = spec.num_kv_heads, spec.head_dim
    return NativeKVCache(
        _memory(dtype, num_blocks, heads, dim // word, block_size, word),
        _memory(dtype, num_blocks, heads, block_size // word, dim, word),
        block_size,
    )


def bytes_per_block(block_size: int, spec: AttentionSpec, dtype: torch.dtype) -> int:
    """Bytes of keys and values of one block of one layer."""
    return 2 * block_size * spec.num_kv_heads * spec.head_dim * dtype.itemsize


def _memory(dtype: torch.dtype, *shape: int) -> Tensor:
    """Memory on large pages, for blocks lie anywhere in it."""
    from triolet_kernels._native import advise_huge_pages

    memory = torch.empty(shape, dtype=dtype)
    advise_huge_pages(memory.data_ptr(), memory.numel() * memory.element_size())
    return memory
