"""Knows what a self-benchmark asks of an engine: a few verbs, each with a plain answer.

A driver sits in the engine's scheduler. What it hands back to be run is opaque to everything above it. Verbs
are called on the engine's thread, between two steps. A shortfall is an answer (:class:`Refused`), not an
exception; a verb that cannot be carried out at all raises :class:`~forwardpass.errors.EngineError`, which
ends the benchmark.
"""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct

from forwardpass.bench.limits import CapacityEnvelope, EngineLayout
from forwardpass.bench.points import Phase

__all__ = ["Admitted", "Batch", "BenchDriver", "Refused", "SyntheticRequest"]


class SyntheticRequest(Struct, frozen=True):
    """One request that the benchmark makes up."""

    slot: int
    """Its place in the batch."""
    token_ids: tuple[int, ...]
    """The prompt. For a decode one longer than its context: the last token is the one to compute."""
    cache_salt: str = ""
    """Keeps its cached blocks from all others'; requests with the same salt share prefixes. Empty: unique."""
    cached_tokens: int = 0
    """Tokens of the prompt that have to be found in the cache, exactly (prefill)."""
    max_tokens: int = 1


class Batch(Struct, frozen=True):
    """Requests that are injected together, or not at all."""

    phase: Phase
    requests: tuple[SyntheticRequest, ...]


class Admitted(Struct, frozen=True):
    """A batch that the engine took."""

    ids: tuple[str, ...]
    """In the order of the batch."""
    output: Any = None
    """What has to run now (decode); prefills are scheduled by the engine itself."""


class Refused(Struct, frozen=True):
    """A batch that the engine did not take; nothing of it is left behind."""

    why: str
    cache_missed: bool = False
    """A prompt was not found in the cache to the length that it had to be."""


class BenchDriver(Protocol):
    """The verbs of one engine."""

    def layout(self) -> EngineLayout:
        """Return what is the same on every rank of this engine."""
        ...

    def capacity(self) -> CapacityEnvelope:
        """Return what this rank can hold now, without a digest."""
        ...

    def first_chunk(self, prompt_tokens: int, cached_tokens: int) -> int:
        """Return how many tokens of a prompt the engine would schedule at once, by rules of its own."""
        ...

    def seed_prefixes(self, batch: Batch) -> Refused | None:
        """Let the cache find the prompts of ``batch`` without computing them; nothing is left of it if
        refused.
        """
        ...

    def inject(self, batch: Batch) -> Admitted | Refused:
        """Take a batch. Prefills wait to be scheduled in the next step; decodes are running, one token short
        of their prompt, and ``output`` runs their first step.
        """
        ...

    def steady(self, ids: tuple[str, ...]) -> Any | None:
        """Return the output that decodes each of ``ids`` once more, as the engine itself would, or ``None``
        if a block is missing.
        """
        ...

    def empty(self) -> Any:
        """Return an output that runs nothing."""
        ...

    def alive(self, ids: tuple[str, ...]) -> int:
        """Return how many of ``ids`` the engine still has."""
        ...

    def release(self, ids: tuple[str, ...]) -> None:
        """Abort those of ``ids`` that are left, the way the engine aborts requests."""
        ...

    def settled(self) -> bool:
        """Return whether every block of released requests is free again."""
        ...

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; ``False`` if blocks are still in use."""
        ...
