"""Knows which KV blocks are used, shared, cached or free.

A block is counted by the requests that hold it. A full block also has a key that stands for its content
and everything before it (a real engine chains hashes for that). A block that nobody holds is free but
keeps its content until it is the least recently freed one and somebody needs room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

__all__ = ["KvCache"]


class KvCache:
    """The blocks of one rank. Callers ask :attr:`free_blocks` before they take or share."""

    __slots__ = ("_cached", "_free", "_holders", "_keys", "_prefix_caching", "block_tokens", "num_blocks")

    def __init__(self, num_blocks: int, block_tokens: int, *, prefix_caching: bool) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._prefix_caching = prefix_caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # next victim first
        self._holders = [0] * num_blocks
        self._keys: list[int | None] = [None] * num_blocks
        self._cached: dict[int, int] = {}  # key -> block

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds, cached content or not."""
        return len(self._free)

    @property
    def used_blocks(self) -> int:
        """Blocks that at least one request holds."""
        return self.num_blocks - len(self._free)

    @property
    def holders(self) -> int:
        """Sum of all holds; a block shared by three requests counts three times."""
        return sum(self._holders)

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks ``tokens`` tokens occupy."""
        return -(-tokens // self.block_tokens)

    def match(self, keys: Iterable[int]) -> list[int]:
        """Return the cached blocks of the longest prefix of ``keys``; holds nothing yet."""
        found: list[int] = []
        if self._prefix_caching:
            for key in keys:
                block = self._cached.get(key)
                if block is None:
                    break
                found.append(block)
        return found

    def unheld(self, blocks: Iterable[int]) -> int:
        """Return how many of ``blocks`` are free now, so that sharing them takes from the free ones."""
        return sum(not self._holders[block] for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Hold matched ``blocks`` once more."""
        for block in blocks:
            if not self._holders[block]:
                del self._free[block]
            self._holders[block] += 1

    def take(self, count: int) -> list[int]:
        """Hold ``count`` free blocks and return them; their cached content is forgotten."""
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._holders[block] = 1
            key = self._keys[block]
            if key is not None:
                del self._cached[key]
                self._keys[block] = None
        return taken

    def remember(self, block: int, key: int) -> None:
        """Let a held block that just became full be found by ``key``. The first of equal content stays."""
        if self._prefix_caching and key not in self._cached:
            self._cached[key] = block
            self._keys[block] = key

    def forget(self) -> bool:
        """Forget all cached content; ``False``, and nothing is forgotten, while a block is held."""
        if self.used_blocks:
            return False
        self._cached.clear()
        self._keys = [None] * self.num_blocks
        return True

    def release(self, blocks: list[int]) -> None:
        """Give up ``blocks`` (in order of the request); the end of a request is evicted before its start."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None
