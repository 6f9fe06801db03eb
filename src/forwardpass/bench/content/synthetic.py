"""Knows tokens that need no text: random ones, or zeros where the vocabulary is not known."""

from __future__ import annotations

import random

from forwardpass.bench.content.base import TokenStream
from forwardpass.bench.content.identity import ContentKind

__all__ = ["RandomTokens", "Zeros", "without_text"]


class RandomTokens:
    """Tokens 1 … ``vocab_size`` - 1, drawn by Python's own generator seeded with the text of the key.

    It draws one number after the other, so that a shorter draw is a prefix of a longer one.
    """

    __slots__ = ("_ids",)

    def __init__(self, vocab_size: int) -> None:
        self._ids = range(1, vocab_size)

    def tokens(self, key: str, length: int) -> list[int]:
        """Return the first ``length`` tokens of ``key``'s stream."""
        return random.Random(key).choices(self._ids, k=length)


class Zeros:
    """Nothing but token 0."""

    __slots__ = ()

    def tokens(self, key: str, length: int) -> list[int]:
        """Return ``length`` zeros."""
        return [0] * length


def without_text(vocab_size: int | None) -> tuple[ContentKind, TokenStream]:
    """Return what prompts are made of without a text; ``vocab_size`` is ``None`` where it is not known."""
    if vocab_size is None or vocab_size <= 1:
        return ContentKind.ZEROS, Zeros()
    return ContentKind.RANDOM, RandomTokens(vocab_size)
