"""Knows prompts that are whole real texts, one after the other, in an order of their own for each chain."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from forwardpass.bench.content.base import ContentReason, Tokenizer
from forwardpass.bench.content.identity import chain_key
from forwardpass.errors import ContentUnavailable

__all__ = ["CACHED_TOKENS", "ChainStream", "Chains"]

CACHED_TOKENS = 64_000_000
"""Tokens that are kept, of all chains together (4 bytes each); the least recently used chain goes first."""
_FIRST_STREAM_CHAIN = 20_000_000
_STREAM_CHAINS = 1_000_000


class _Chain:
    """What was encoded of one chain: it is only ever extended."""

    __slots__ = ("texts", "tokens")

    def __init__(self) -> None:
        self.tokens = array("I")
        self.texts = 0
        """How many texts of its order are in it."""


class Chains:
    """The chains of one rank. Chain ``index`` is the same whenever and however far it is asked for."""

    def __init__(
        self,
        texts: Sequence[str],
        tokenizer: Tokenizer,
        *,
        seed: str,
        dp_rank: int,
        cached_tokens: int = CACHED_TOKENS,
    ) -> None:
        self._texts = texts
        self._tokenizer = tokenizer
        self._seed = seed
        self._dp_rank = dp_rank
        self._room = cached_tokens
        self._chains: OrderedDict[int, _Chain] = OrderedDict()
        self._held = 0

    @property
    def held_tokens(self) -> int:
        """Tokens that are kept now."""
        return self._held

    def tokens(self, index: int, length: int) -> list[int]:
        """Return the first ``length`` tokens of chain ``index``.

        Raises :class:`~forwardpass.errors.ContentUnavailable` if all texts together are shorter.
        """
        chain = self._chains.setdefault(index, _Chain())
        self._chains.move_to_end(index)
        if len(chain.tokens) < length:
            self._extend(chain, index, length)
        found = chain.tokens[:length].tolist()
        self._make_room()
        if len(found) < length:
            raise ContentUnavailable(
                ContentReason.TOO_SHALLOW, f"all texts have {len(found)} tokens; a chain needs {length}"
            )
        return found

    def prove(self, length: int) -> None:
        """Raise :class:`~forwardpass.errors.ContentUnavailable` unless a chain can have ``length`` tokens."""
        self.tokens(0, length)

    def forget(self) -> None:
        """Drop what was encoded."""
        self._chains.clear()
        self._held = 0

    def _extend(self, chain: _Chain, index: int, length: int) -> None:
        order = list(range(len(self._texts)))  # drawn anew, since to keep it for each chain would cost more
        random.Random(chain_key(self._seed, self._dp_rank, index)).shuffle(order)
        while len(chain.tokens) < length and chain.texts < len(order):
            found = array("I", self._tokenizer.encode(self._texts[order[chain.texts]]))
            chain.tokens += found
            chain.texts += 1
            self._held += len(found)

    def _make_room(self) -> None:
        while self._held > self._room and self._chains:
            _, oldest = self._chains.popitem(last=False)
            self._held -= len(oldest.tokens)


class ChainStream:
    """A chain for each key, apart from those of decode."""

    __slots__ = ("_chains",)

    def __init__(self, chains: Chains) -> None:
        self._chains = chains

    def tokens(self, key: str, length: int) -> list[int]:
        """Return the first ``length`` tokens of ``key``'s chain; raises as :meth:`Chains.tokens`."""
        drawn = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")
        return self._chains.tokens(_FIRST_STREAM_CHAIN + drawn % _STREAM_CHAINS, length)
