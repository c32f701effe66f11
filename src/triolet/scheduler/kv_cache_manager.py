"""Gives sequences their KV blocks and takes them back.

One pool of equal blocks serves all KV groups of the model. Each sequence has one block table
per group, and all its tables have the same length; a group with a sliding window gives back
the blocks that left it, at the front of its table:

    positions    0 .. 15   16 .. 31   32 .. 47   48 .. 63
    full group     7          3          9          4
    window 16      -          -          2          8       first_held = 2

A block leaves the window as seen from the start of the block that is being filled, not from
the token: so a fork, or a prefix hit, at that block boundary always finds what it reads.
That costs at most one block per group.

Nothing here raises for want of blocks: what does not fit is answered with "not now".
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from triolet.messages.runner_to_scheduler import RunnerInfo
from triolet.scheduler.prefix_cache import Key, KeyChain, PrefixCache, PrefixHit, window_blocks

UNREAD_BLOCK = 0
"""Stands in block tables where the tokens have left the window; the runner never reads it."""


class SequenceBlocks:
    """Blocks of one sequence.

    Attributes:
        tables: Per group, block ids by index of the block in the sequence.
        first_held: Per group, index of the first block it still holds.
        chain: Keys of its full blocks.
        num_registered: Full blocks already offered to the prefix cache.
    """

    __slots__ = ("chain", "first_held", "num_registered", "tables")

    def __init__(self, num_groups: int, chain: KeyChain) -> None:
        self.tables: list[list[int]] = [[] for _ in range(num_groups)]
        self.first_held = [0] * num_groups
        self.chain = chain
        self.num_registered = 0

    @property
    def num_blocks(self) -> int:
        """Length of its block tables."""
        return len(self.tables[0])

    @property
    def num_held(self) -> int:
        """References to blocks it holds, over all groups."""
        return self.num_blocks * len(self.tables) - sum(self.first_held)

    def held(self) -> Iterable[int]:
        """Ids of the blocks it holds, over all groups."""
        for table, first in zip(self.tables, self.first_held, strict=True):
            yield from table[first:]


class KVCacheManager:
    """The KV cache of one runner, in blocks.

    Args:
        info: The runner.
        enable_prefix_caching: Whether blocks are found again by their content.
        model_key: See `PrefixCache`.
        secret: See `PrefixCache`.
    """

    def __init__(
        self, info: RunnerInfo, *, enable_prefix_caching: bool, model_key: str, secret: bytes
    ) -> None:
        self.block_size = info.block_size
        self.num_groups = len(info.groups)
        self._caching = enable_prefix_caching
        self._windows = [window_blocks(group, info.block_size) for group in info.groups]
        self._bounded = [window for window in self._windows if window is not None]
        self._num_full = self.num_groups - len(self._bounded)
        self._cache = PrefixCache(
            info.num_blocks, info.block_size, info.groups, model_key=model_key, secret=secret
        )
        self.pool = self._cache.pool
        self.capacity_tokens = self._capacity_tokens()

    def sequence_blocks(self, salt: str | None) -> SequenceBlocks:
        """Blocks of a new sequence: none yet."""
        root: Key = self._cache.root(salt) if self._caching else b""
        return SequenceBlocks(self.num_groups, KeyChain(root, self.block_size))

    # What fits

    def footprint(self, num_blocks: int, chunk_blocks: int = 1) -> int:
        """Blocks, over all groups, that a sequence holds when its tables are this long.

        Args:
            num_blocks: Length of its block tables.
            chunk_blocks: How many of them are being filled in one step.
        """
        total = self._num_full * num_blocks
        for window in self._bounded:
            total += min(num_blocks, window + chunk_blocks)
        return total

    def _capacity_tokens(self) -> int:
        """Longest sequence that fits when it is alone and is computed in small chunks."""
        total = self.pool.num_blocks
        if self._num_full == 0 and self.footprint(2**62) <= total:
            return 2**62  # old blocks are given back: length has no limit once a window fits
        lengths = range(1, total + 1)
        return self.block_size * bisect.bisect_right(lengths, total, key=self.footprint)

    def blocks_to_start(self, num_tokens: int, chunk: int, hit: PrefixHit) -> int:
        """Available blocks that a sequence uses up until `num_tokens` of it are computed.

        Args:
            num_tokens: Tokens to compute in the end, `hit` included.
            chunk: Tokens of it to compute in one step.
            hit: Where it starts from.
        """
        chunk_blocks = -(-(chunk + self.block_size - 1) // self.block_size)
        needed = self.footprint(-(-num_tokens // self.block_size), chunk_blocks)
        shared = 0
        for table in hit.tables:
            for block in table:
                shared += self.pool.is_used(block)
        return needed - shared

    # The life of a sequence's blocks

    def find_prefix(
        self, blocks: SequenceBlocks, tokens: Sequence[int], *, use_cache: bool = True
    ) -> PrefixHit:
        """The cached prefix of a sequence, shorter than the sequence by at least one token.

        Args:
            blocks: Blocks of the sequence: none yet.
            tokens: Its known tokens.
            use_cache: False: everything must be computed, find nothing.
        """
        # The last token is always computed: its logits are what the next sample needs.
        is_read = self._caching and use_cache
        max_blocks = (len(tokens) - 1) // self.block_size if is_read else 0
        return self._cache.find(blocks.chain, tokens, max_blocks)

    def adopt(self, blocks: SequenceBlocks, hit: PrefixHit) -> None:
        """Start an empty sequence on the blocks of a hit."""
        assert blocks.num_blocks == 0, "the sequence has blocks already"
        for group, table in enumerate(hit.tables):
            for block in table:
                self.pool.share(block)
            blocks.tables[group] = [UNREAD_BLOCK] * hit.first_held[group] + table
        blocks.first_held = list(hit.first_held)
        blocks.num_registered = hit.num_blocks

    def extend(self, blocks: SequenceBlocks, start: int, confirmed: int, num_tokens: int) -> int:
        """Make room for up to `num_tokens` more tokens, the first at position `start`.

        Args:
            blocks: Blocks of the sequence.
            start: Tokens computed or being computed.
            confirmed: Tokens whose step has ended; blocks past them are not registered yet.
            num_tokens: Tokens wanted.

        Returns:
            Tokens there is room for, `num_tokens` at most; 0 is "not now".
        """
        have = blocks.num_blocks
        if have * self.block_size - start >= num_tokens:
            return num_tokens
        self._leave_windows(blocks, confirmed)
        more = -(-(start + num_tokens) // self.block_size) - have
        if more * self.num_groups > self.pool.num_available:
            # Steps in flight have not read these blocks yet, but they will before the step
            # that reuses them, because a device executes in order. Only the chance to cache
            # them is lost.
            self._leave_windows(blocks, start)
            more = min(more, self.pool.num_available // self.num_groups)
        for table in blocks.tables:
            taken = self.pool.take(more)
            assert taken is not None, "counted above"
            table += taken
        return min(num_tokens, (have + more) * self.block_size - start)

    def fork(self, parent: SequenceBlocks, child: SequenceBlocks, num_tokens: int) -> bool:
        """Let an empty child share the parent's full blocks of its first `num_tokens` tokens.

        Returns:
            False, and nothing shared, if the parent does not hold what the child would read.
        """
        assert child.num_blocks == 0, "the child has blocks already"
        count = num_tokens // self.block_size
        first = [0 if w is None else max(0, count - w) for w in self._windows]
        if count == 0 or count > parent.num_blocks:
            return False
        if any(mine < held for mine, held in zip(first, parent.first_held, strict=True)):
            return False
        for group, table in enumerate(parent.tables):
            shared = table[first[group] : count]
            for block in shared:
                self.pool.share(block)
            child.tables[group] = [UNREAD_BLOCK] * first[group] + shared
        child.first_held = first
        child.chain = parent.chain.copy(count)
        child.num_registered = min(count, parent.num_registered)
        return True

    def register(self, blocks: SequenceBlocks, tokens: Sequence[int], confirmed: int) -> None:
        """Offer the full blocks among the first `confirmed` tokens to the prefix cache.

        Call it only with tokens whose step has ended while the sequence held its blocks.
        """
        full = confirmed // self.block_size
        if not self._caching or full <= blocks.num_registered:
            return
        for index in range(blocks.num_registered, full):
            key = blocks.chain.key(index, tokens)
            for group, table in enumerate(blocks.tables):
                if index >= blocks.first_held[group]:
                    self._cache.add(group, key, table[index])
        blocks.num_registered = full

    def forget_after(self, blocks: SequenceBlocks, num_tokens: int) -> None:
        """Take the blocks that reach past the first `num_tokens` tokens out of the cache."""
        start = num_tokens // self.block_size
        for table, first in zip(blocks.tables, blocks.first_held, strict=True):
            for block in table[max(start, first) :]:
                self._cache.forget(block)

    def release(self, blocks: SequenceBlocks) -> None:
        """Give all blocks back, the tail first, so that it is evicted first."""
        for index in range(blocks.num_blocks - 1, min(blocks.first_held) - 1, -1):
            for table, first in zip(blocks.tables, blocks.first_held, strict=True):
                if index >= first:
                    self.pool.release(table[index])
        blocks.tables = [[] for _ in range(self.num_groups)]
        blocks.first_held = [0] * self.num_groups
        blocks.num_registered = 0

    def reset_prefix_cache(self) -> None:
        """Forget what every block holds. Sequences keep theirs."""
        self._cache.reset()

    def check_integrity(self, sequences: Iterable[SequenceBlocks]) -> None:
        """Assert that these sequences, and nobody else, hold blocks.

        Args:
            sequences: Every sequence that may hold blocks.
        """
        held: list[int] = []
        for blocks in sequences:
            for table, first in zip(blocks.tables, blocks.first_held, strict=True):
                assert len(table) == blocks.num_blocks, "block tables differ in length"
                assert 0 <= first <= len(table), (first, len(table))
            held += blocks.held()
        self.pool.check_integrity(held)
        self._cache.check_integrity()

    def _leave_windows(self, blocks: SequenceBlocks, computed: int) -> None:
        """Give back the blocks that no token from the block of `computed` on reads."""
        aligned = computed // self.block_size
        for group, window in enumerate(self._windows):
            if window is None:
                continue
            first = aligned - window
            for index in range(blocks.first_held[group], first):
                self.pool.release(blocks.tables[group][index])
            if first > blocks.first_held[group]:
                blocks.first_held[group] = first
