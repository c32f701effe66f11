"""The KV cache: how large it is, and the memory of it.

A group of layers is a column of the layout in `kv_layout.py`; the layers in one row of it share
one tensor, for no block belongs to two groups at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

from triolet.config import CacheConfig
from triolet.errors import ConfigError
from triolet.runner.kv_layout import KVLayout, kv_layout
from triolet_kernels.ops import AttentionBatch, AttentionSpec, KVCache, Ops


@attrs.frozen
class KVTensors:
    """Memory of the KV cache.

    Attributes:
        layout: Where each layer lies.
        caches: Per slot of a group.
    """

    layout: KVLayout
    caches: tuple[KVCache, ...]

    def layers(self, attention: Sequence[AttentionBatch]) -> list[tuple[AttentionBatch, KVCache]]:
        """What each layer attends with and to, from one AttentionBatch per group."""
        return [(attention[group], self.caches[slot]) for group, slot in self.layout.places]


def layout_of(specs: Sequence[AttentionSpec], max_model_len: int) -> KVLayout:
    """The layout of a model's layers.

    Layers can share a tensor only if their keys and values have the same shape. A model in
    which they have not gets one group in which every layer has its own: nothing is given back
    when a window passes, and everything stays right.
    """
    shapes = {(spec.num_kv_heads, spec.head_dim) for spec in specs}
    windows = [spec.window if len(shapes) == 1 else None for spec in specs]
    return kv_layout(windows, max_model_len)


def slot_specs(layout: KVLayout, specs: Sequence[AttentionSpec]) -> list[AttentionSpec]:
    """Per slot, the first layer that lies in it: all of them have the same shape."""
    first: dict[int, AttentionSpec] = {}
    for (_, slot), spec in zip(layout.places, specs, strict=True):
        first.setdefault(slot, spec)
    return [first[slot] for slot in range(layout.num_slots)]


def block_bytes(layout: KVLayout, specs: Sequence[AttentionSpec], ops: Ops, block_size: int) -> int:
    """Bytes of one block in all slots together."""
    return sum(ops.kv_bytes_per_block(block_size, spec) for spec in slot_specs(layout, specs))


def blocks_in_budget(cache: CacheConfig, num_groups: int, block_bytes: int, free_bytes: int) -> int:
    """Blocks that the settings allow: bytes, else tokens, else a share of the free memory.

    Raises:
        ConfigError: More bytes are asked for than are free.
    """
    if cache.kv_cache_memory_bytes is not None:
        num_blocks, param = cache.kv_cache_memory_bytes // block_bytes, "kv_cache_memory_bytes"
    elif cache.kv_cache_tokens is not None:
        num_blocks = -(-cache.kv_cache_tokens // cache.block_size) * num_groups
        param = "kv_cache_tokens"
    else:
        return int(free_bytes * cache.kv_cache_fraction) // block_bytes
    if num_blocks * block_bytes > free_bytes:
        raise ConfigError(
            f"{param} asks for a KV cache of {num_blocks * block_bytes >> 20} MiB, and "
            f"{free_bytes >> 20} MiB of memory are free; lower it",
            param=param,
        )
    return num_blocks


def check_kv_dtype(cache: CacheConfig, dtype: torch.dtype) -> None:
    """Refuse a KV dtype that the kernels do not store.

    Raises:
        ConfigError: It differs from the model's.
    """
    name = str(dtype).removeprefix("torch.")
    if cache.kv_cache_dtype not in ("auto", name):
        raise ConfigError(
            f"kv_cache_dtype {cache.kv_cache_dtype!r} differs from the model's dtype {name!r}, "
            f"in which these kernels keep keys and values; use 'auto' or dtype="
            f"{cache.kv_cache_dtype!r}",
            param="kv_cache_dtype",
        )


def allocate(
    layout: KVLayout, specs: Sequence[AttentionSpec], ops: Ops, num_blocks: int, block_size: int
) -> KVTensors:
    """Take the memory.

    Raises:
        ConfigError: There is not so much.
    """
    try:
        caches = tuple(
            ops.allocate_kv(num_blocks, block_size, spec) for spec in slot_specs(layout, specs)
        )
    except (RuntimeError, MemoryError) as error:  # torch raises RuntimeError on CPU
        raise ConfigError(
            f"cannot allocate a KV cache of {num_blocks} blocks: {error}; lower "
            "kv_cache_memory_bytes, kv_cache_tokens or kv_cache_fraction",
            param="kv_cache_memory_bytes",
        ) from error
    return KVTensors(layout, caches)
