"""Knows what content asks of a tokenizer and gives to prompts, and why there may be none."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

__all__ = ["ContentReason", "TokenStream", "Tokenizer"]


class Tokenizer(Protocol):
    """Turns text into token ids; the engine's own tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``, without special tokens."""
        ...


class TokenStream(Protocol):
    """Endless tokens for every key."""

    def tokens(self, key: str, length: int) -> list[int]:
        """Return the first ``length`` tokens of ``key``'s stream: a shorter draw is a prefix of a longer."""
        ...


class ContentReason(StrEnum):
    """Why there is no real text. The values begin what an artifact says about it."""

    UNAVAILABLE = "dataset_unavailable"
    EMPTY = "dataset_empty"
    TOKENIZER = "tokenizer_unavailable"
    TOO_SHALLOW = "content_too_shallow"
