"""Knows what the sequence numbers of one publisher say: what was lost on the way, and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Jump", "SequenceWatch"]


class Jump(NamedTuple):
    """A message whose number does not follow the one before it."""

    at: int
    """Which message of the batch."""
    last: int
    """The number before it."""
    number: int
    """Its own. Not above ``last``: the publisher began again (or a foreign one cut in)."""


class SequenceWatch:
    """Counts of one publisher. Numbers before the first one seen are not missed: the reader came later."""

    __slots__ = ("_last", "gaps", "lost", "restarts")

    def __init__(self) -> None:
        self.gaps = 0
        """Times that numbers were skipped."""
        self.lost = 0
        """Numbers that were skipped: messages that were dropped after they had been numbered."""
        self.restarts = 0
        """Times that the number did not grow."""
        self._last: int | None = None

    def note(self, number: int) -> None:
        """Take note of one number."""
        if self._last is not None and number == self._last + 1:
            self._last = number
        else:
            self.note_many([number])

    def note_many(self, sequences: Sequence[int]) -> list[Jump]:
        """Take note of ``sequences``, in the order of arrival; return where they jumped."""
        if not sequences:
            return []
        jumps: list[Jump] = []
        last = self._last
        if last is None or tuple(sequences) != tuple(range(last + 1, last + 1 + len(sequences))):
            for at, number in enumerate(sequences):
                if last is not None and number != last + 1:
                    jumps.append(Jump(at, last, number))
                last = number
        self._last = sequences[-1]
        for jump in jumps:
            if jump.number <= jump.last:
                self.restarts += 1
            else:
                self.gaps += 1
                self.lost += jump.number - jump.last - 1
        return jumps
