"""Knows what one call of the scheduler decided: the work of one forward pass."""

from __future__ import annotations

from typing import NamedTuple

from forwardpass.engines.mock.request import Request

__all__ = ["Chunk", "Step"]


class Chunk(NamedTuple):
    """A prefill, or a part of one. Lengths in tokens."""

    tokens: int
    """Computed in this pass."""
    computed: int
    """In the KV cache before this pass: prefix hits and earlier chunks."""
    length: int
    """The whole prompt, or for a resumed request all its known tokens (decision D-2)."""


class Step:
    """One pass. Empty when nothing could be scheduled."""

    __slots__ = ("chunks", "contexts", "preempted", "sampling")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.contexts: list[int] = []
        """Context length in KV of each decoding request before this pass, in tokens."""
        self.sampling: list[Request] = []
        """Requests that get a token out of this pass."""
        self.preempted = 0

    @property
    def empty(self) -> bool:
        """Whether no token is computed."""
        return not (self.chunks or self.contexts)
