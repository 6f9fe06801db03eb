"""Knows prompts that are windows over one flat pool of real text."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from forwardpass.bench.content.base import ContentReason, Tokenizer
from forwardpass.errors import ContentUnavailable

__all__ = ["ENOUGH_TOKENS", "LEAST_TOKENS", "TextWindows", "build_pool"]

ENOUGH_TOKENS = 2_400_000
LEAST_TOKENS = 4096
_ORDER = "bench-prefill-pool"
"""Seed of the order of texts: the same pool on every rank and in every run."""


def build_pool(
    texts: Sequence[str], tokenizer: Tokenizer, *, enough: int = ENOUGH_TOKENS, least: int = LEAST_TOKENS
) -> array[int]:
    """Return the tokens of whole texts, in an order of their own, until there are ``enough``.

    Raises :class:`~forwardpass.errors.ContentUnavailable` if all of them have less than ``least``.
    """
    order = list(range(len(texts)))
    random.Random(_ORDER).shuffle(order)
    pool = array("I")
    for index in order:
        pool.extend(tokenizer.encode(texts[index]))
        if len(pool) >= enough:
            break
    if len(pool) < least:
        raise ContentUnavailable(
            ContentReason.TOO_SHALLOW, f"a pool of {len(pool)} tokens; {least} are needed"
        )
    return pool


class TextWindows:
    """A window for each key; where it begins does not depend on its length, and the pool has no end."""

    __slots__ = ("_pool", "_tag")

    def __init__(self, pool: array[int], tag: str = "") -> None:
        self._pool = pool
        self._tag = tag

    def tokens(self, key: str, length: int) -> list[int]:
        """Return the first ``length`` tokens of ``key``'s window."""
        size = len(self._pool)
        start = random.Random(f"{self._tag}:{key}").randrange(size)
        found = self._pool[start : start + length].tolist()
        while len(found) < length:
            found += self._pool[: length - len(found)].tolist()
        return found
