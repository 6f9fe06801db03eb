"""Knows which messages of an event plane were seen, however many and in whatever order."""

from __future__ import annotations

from bisect import bisect_right

from forwardpass.trace.record import MessageId

__all__ = ["SeenMessages"]


class SeenMessages:
    """A set of messages that keeps runs of consecutive numbers, not numbers.

    Publishers count without holes, so that each of them takes one run once all that was between has come:
    memory grows with the publishers and with what is missing, not with the messages.
    """

    __slots__ = ("_bounds",)

    def __init__(self) -> None:
        self._bounds: dict[int, list[int]] = {}
        """For each publisher, in order: first of a run, one after its last, first of the next run, …"""

    def add(self, message: MessageId) -> bool:
        """Take note of ``message``; return False if it was seen before."""
        number = message.sequence
        bounds = self._bounds.get(message.publisher_id)
        if bounds is None:
            self._bounds[message.publisher_id] = [number, number + 1]
            return True
        if bounds[-1] == number:  # the usual case: the next one
            bounds[-1] = number + 1
            return True
        at = bisect_right(bounds, number)
        if at % 2:
            return False
        _insert(bounds, at, number)
        return True

    def runs(self) -> int:
        """Return how many runs are kept."""
        return sum(map(len, self._bounds.values())) // 2


def _insert(bounds: list[int], at: int, number: int) -> None:
    """Add a number that belongs between the runs before and after place ``at``."""
    ends_here = at > 0 and bounds[at - 1] == number
    begins_next = at < len(bounds) and bounds[at] == number + 1
    if ends_here and begins_next:
        del bounds[at - 1 : at + 1]
    elif ends_here:
        bounds[at - 1] = number + 1
    elif begins_next:
        bounds[at] = number
    else:
        bounds[at:at] = [number, number + 1]
