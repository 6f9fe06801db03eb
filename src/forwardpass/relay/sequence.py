"""Knows what the sequence numbers of one raw stream say: what was lost on the way, and restarts."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["SequenceWatch"]


class SequenceWatch:
    """Counts of one stream. Numbers before the first one seen are not missed: the reader came later."""

    __slots__ = ("_last", "gaps", "lost", "restarts")

    def __init__(self) -> None:
        self.gaps = 0
        """Times that numbers were skipped."""
        self.lost = 0
        """Numbers that were skipped: messages that were dropped after they had been numbered."""
        self.restarts = 0
        """Times that the number did not grow: the publisher began again (or a foreign one cut in)."""
        self._last: int | None = None

    def note_many(self, sequences: Sequence[int]) -> None:
        """Take note of ``sequences``, in the order of arrival."""
        if not sequences:
            return
        last = self._last
        if last is None or tuple(sequences) != tuple(range(last + 1, last + 1 + len(sequences))):
            for number in sequences:
                self._note(number)
        self._last = sequences[-1]

    def _note(self, number: int) -> None:
        last, self._last = self._last, number
        if last is None or number == last + 1:
            return
        if number <= last:
            self.restarts += 1
            return
        self.gaps += 1
        self.lost += number - last - 1
