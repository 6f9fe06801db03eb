"""Knows the rows that the witness in the engine writes, one for each forward pass, and how to read them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["ROW", "WITNESS_FILE", "Spread", "WitnessRow", "read_rows"]

WITNESS_FILE = "SOAK_WITNESS_FILE"
"""The environment variable that names the file; the scheduler has no other way to be told."""

ROW = struct.Struct("<18q4d")


class Spread(NamedTuple):
    """Count, sum and sum of squares of some lengths, in tokens: exact integers."""

    n: int = 0
    total: int = 0
    squares: int = 0

    @classmethod
    def of(cls, lengths: list[int]) -> Spread:
        """Return the spread of ``lengths``."""
        return cls(len(lengths), sum(lengths), sum(length * length for length in lengths))

    @property
    def variance(self) -> float:
        """The population variance, rounded once."""
        return (self.n * self.squares - self.total * self.total) / (self.n * self.n) if self.n else 0.0


class WitnessRow(NamedTuple):
    """What one pass did and what waited after it, counted from the engine's live requests."""

    prefill_tokens: int
    prefill_kv_tokens: int
    prefill: Spread
    decode: Spread
    queued_prefill: Spread
    queued_decode: Spread
    samples: int
    """Requests that get a token from this pass."""
    after_empty: int
    """1 if an engine step without tokens came right before."""
    steps: int
    """Engine steps so far, those without tokens included."""
    resumed: int
    """Requests whose lost tokens this pass finished computing again."""
    scheduled_before: float
    scheduled_after: float
    arrived_before: float
    arrived_after: float
    """Monotonic seconds around ``schedule`` and ``update_from_output``."""

    def packed(self) -> bytes:
        """Return the row as it stands in the file."""
        return ROW.pack(
            *(self.prefill_tokens, self.prefill_kv_tokens),
            *(*self.prefill, *self.decode, *self.queued_prefill, *self.queued_decode),
            *(self.samples, self.after_empty, self.steps, self.resumed),
            *(self.scheduled_before, self.scheduled_after, self.arrived_before, self.arrived_after),
        )

    @classmethod
    def unpacked(cls, data: bytes) -> WitnessRow:
        """Return the row in ``data``."""
        values = ROW.unpack(data)
        prefill, decode, prompts, contexts = (Spread(*values[start : start + 3]) for start in (2, 5, 8, 11))
        return cls(values[0], values[1], prefill, decode, prompts, contexts, *values[14:])


def read_rows(path: Path) -> Iterator[WitnessRow]:
    """Yield the rows in the file at ``path``."""
    with path.open("rb") as file:
        while len(data := file.read(ROW.size)) == ROW.size:
            yield WitnessRow.unpacked(data)
