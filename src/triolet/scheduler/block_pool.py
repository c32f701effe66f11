"""Who holds which KV block: a free list, reference counts and an LRU of cached blocks.

A block is in exactly one of three states:

* free: nobody holds it and nothing in it is worth keeping;
* used: its reference count is positive (several sequences may share it);
* cached: nobody holds it, but the prefix cache can still find its content. Cached blocks
  are given away when the free list is empty, the one released longest ago first.

Every operation is O(1) per block. The pool knows neither sequences nor hashes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable


class BlockPool:
    """Equal blocks that are taken, shared and released.

    Args:
        num_blocks: Blocks in the pool; ids are 0..num_blocks-1.
        on_evict: Told the id of a cached block whose content is about to be lost.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        assert num_blocks > 0, num_blocks
        self.num_blocks = num_blocks
        self.num_releases = 0
        """Blocks that became available so far: unchanged means nothing more fits than before."""
        self._on_evict = on_evict
        # Popped from the end, so that low ids are given away first.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._lru: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * num_blocks
        self._keyed = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and that the prefix cache can find."""
        return len(self._lru)

    @property
    def num_available(self) -> int:
        """Blocks that `take` can give away now."""
        return len(self._free) + len(self._lru)

    @property
    def num_used(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - len(self._free) - len(self._lru)

    def is_used(self, block: int) -> bool:
        """Whether somebody holds the block."""
        return self._references[block] > 0

    def is_keyed(self, block: int) -> bool:
        """Whether the prefix cache can find the block."""
        return bool(self._keyed[block])

    def take(self, count: int) -> list[int] | None:
        """Take `count` blocks with one reference each; None, and nothing taken: not now."""
        if count > self.num_available:
            return None
        taken: list[int] = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._lru.popitem(last=False)
                self._keyed[block] = 0
                self._on_evict(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def share(self, block: int) -> None:
        """Take one more reference to a block that is used or cached."""
        if self._references[block] == 0:
            assert self._keyed[block], f"block {block} is free: its content is nobody's"
            del self._lru[block]
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Give back one reference. Release the tail of a sequence first: it is evicted first."""
        assert self._references[block] > 0, f"block {block} is released twice"
        self._references[block] -= 1
        if self._references[block] == 0:
            self.num_releases += 1
            if self._keyed[block]:
                self._lru[block] = None
            else:
                self._free.append(block)

    def set_keyed(self, block: int) -> None:
        """Note that the prefix cache can find this used block: keep it once it is released."""
        assert self._references[block] > 0, f"block {block} is not held by anybody"
        self._keyed[block] = 1

    def clear_keyed(self, block: int) -> None:
        """Note that the prefix cache has forgotten this block."""
        self._keyed[block] = 0
        if self._references[block] == 0 and block in self._lru:
            del self._lru[block]
            self._free.append(block)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Assert that every block is in one state and is held by exactly these holders.

        Args:
            held: The id of each block, once per reference to it.
        """
        references = Counter(held)
        free, cached = set(self._free), set(self._lru)
        assert len(free) == len(self._free), "a block is twice in the free list"
        assert not free & cached, free & cached
        assert len(free) + len(cached) + self.num_used == self.num_blocks
        for block, count in enumerate(self._references):
            assert count == references[block], (
                f"block {block} has {count} references and {references[block]} holders"
            )
            assert (count == 0) == (block in free or block in cached), block
            assert not (block in free and self._keyed[block]), f"free block {block} has a key"
            assert not (block in cached and not self._keyed[block]), f"{block} is lost in the LRU"
