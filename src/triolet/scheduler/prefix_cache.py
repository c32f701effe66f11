"""Finds the KV blocks of a prefix that was computed before.

Only full blocks are found, by a chain of SHA-256: the key of block i covers the model, the
salt and every token from position 0 to the end of the block. The chain starts from a secret
of this process, so nobody outside can predict or collide keys, and each field is length
prefixed and typed, so no salt can imitate a model name (vLLM pull request 12621 is what
happens otherwise). Two different prefixes therefore never share a key.

A model has one KV cache per group of layers, so a prefix is there only if every group still
has what it will read: full-attention groups all blocks, sliding-window groups the last
ceil((window - 1) / block_size) blocks before the hit.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import attrs

from triolet.messages.runner_to_scheduler import KVGroup
from triolet.scheduler.block_pool import BlockPool

Key = bytes


def window_blocks(group: KVGroup, block_size: int) -> int | None:
    """Blocks before an aligned position that a group reads from there; None is all of them."""
    return None if group.window is None else -(-(group.window - 1) // block_size)


def _field(value: bytes | None) -> bytes:
    """Encode one field so that no two lists of fields have the same encoding."""
    return b"\x00" if value is None else b"\x01" + len(value).to_bytes(8, "little") + value


class KeyChain:
    """Keys of the full blocks of one sequence, computed when they are first asked for.

    Args:
        root: Key of the empty prefix, of `PrefixCache.root`.
        block_size: Tokens per block.
    """

    __slots__ = ("_block_size", "keys", "root")

    def __init__(self, root: Key, block_size: int) -> None:
        self.root = root
        self.keys: list[Key] = []
        self._block_size = block_size

    def key(self, index: int, tokens: Sequence[int]) -> Key:
        """Key of block `index`, whose tokens must all be in `tokens`."""
        size = self._block_size
        assert (index + 1) * size <= len(tokens), (index, len(tokens))
        while len(self.keys) <= index:
            start = len(self.keys) * size
            parent = self.keys[-1] if self.keys else self.root
            packed = array("q", tokens[start : start + size]).tobytes()
            # Both parts have a fixed length, so the concatenation is unambiguous.
            self.keys.append(hashlib.sha256(parent + packed).digest())
        return self.keys[index]

    def copy(self, num_blocks: int) -> KeyChain:
        """The chain of a sequence with the same first `num_blocks` blocks."""
        chain = KeyChain(self.root, self._block_size)
        chain.keys = self.keys[:num_blocks]
        return chain


@attrs.frozen
class PrefixHit:
    """Blocks that hold the start of a sequence.

    Attributes:
        num_blocks: Blocks of the prefix, in every group.
        first_held: Per group, index of the first block that is there; earlier ones have
            left the window and are not needed.
        tables: Per group, ids of blocks `first_held`..`num_blocks - 1`.
    """

    num_blocks: int
    first_held: tuple[int, ...]
    tables: tuple[list[int], ...]


class PrefixCache:
    """Map from key to block, one per KV group.

    Args:
        num_blocks: Size of the pool it makes.
        block_size: Tokens per block.
        groups: KV groups of the model.
        model_key: Everything that decides what a KV block holds: model, revision, dtype.
        secret: Random bytes of this process.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        groups: tuple[KVGroup, ...],
        *,
        model_key: str,
        secret: bytes,
    ) -> None:
        assert groups, "a model has at least one KV group"
        self.pool = BlockPool(num_blocks, self._evicted)
        self._block_size = block_size
        self._windows = [window_blocks(group, block_size) for group in groups]
        self._model_key = model_key
        self._secret = secret
        self._blocks: list[dict[Key, int]] = [{} for _ in groups]
        self._keys: dict[int, tuple[int, Key]] = {}

    def root(self, salt: str | None) -> Key:
        """Key of the empty prefix of requests with this salt."""
        fields = (
            b"triolet prefix cache 1",
            self._secret,
            self._model_key.encode(),
            self._block_size.to_bytes(8, "little"),
            None if salt is None else salt.encode(),
        )
        return hashlib.sha256(b"".join(_field(field) for field in fields)).digest()

    def find(self, chain: KeyChain, tokens: Sequence[int], max_blocks: int) -> PrefixHit:
        """The longest prefix, at most `max_blocks` long, that every group has.

        Nothing is taken: share the blocks before taking others from the pool.
        """
        length = self._length(chain, tokens, max_blocks)
        first = tuple(0 if w is None else max(0, length - w) for w in self._windows)
        tables = tuple(
            [blocks[key] for key in chain.keys[start:length]]
            for start, blocks in zip(first, self._blocks, strict=True)
        )
        return PrefixHit(length, first, tables)

    def _length(self, chain: KeyChain, tokens: Sequence[int], max_blocks: int) -> int:
        full = [b for b, w in zip(self._blocks, self._windows, strict=True) if w is None]
        length = 0
        if full:
            while length < max_blocks:
                key = chain.key(length, tokens)
                if any(key not in blocks for blocks in full):
                    break
                length += 1
        elif max_blocks:
            chain.key(max_blocks - 1, tokens)
            length = max_blocks
        good = [True] * length
        for blocks, window in zip(self._blocks, self._windows, strict=True):
            if window is None:
                continue
            run = 0  # blocks that are there without a gap, ending at `index`
            for index in range(length):
                run = run + 1 if chain.keys[index] in blocks else 0
                good[index] = good[index] and run >= min(index + 1, window)
        while length and not good[length - 1]:
            length -= 1
        return length

    def add(self, group: int, key: Key, block: int) -> None:
        """Let a used block be found. The first of two equal blocks stays the one found."""
        if key in self._blocks[group] or block in self._keys:
            return
        self._blocks[group][key] = block
        self._keys[block] = (group, key)
        self.pool.set_keyed(block)

    def forget(self, block: int) -> None:
        """Let a block not be found any more; unknown ones are fine."""
        if block in self._keys:
            self._evicted(block)
            self.pool.clear_keyed(block)

    def reset(self) -> None:
        """Forget every block."""
        for block in list(self._keys):
            self.forget(block)

    def check_integrity(self) -> None:
        """Assert that keys and blocks map to each other one to one."""
        found = {
            block: (group, key)
            for group, blocks in enumerate(self._blocks)
            for key, block in blocks.items()
        }
        assert found == self._keys
        for block in range(self.pool.num_blocks):
            assert self.pool.is_keyed(block) == (block in self._keys), block

    def _evicted(self, block: int) -> None:
        group, key = self._keys.pop(block)
        del self._blocks[group][key]
