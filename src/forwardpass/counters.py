"""Knows how many items a stage was offered, passed on and lost, and why.

For every stage, at every instant::

    offered  = accepted  + refused(reason)
    accepted = delivered + lost(reason) + pending

The fields are split by the thread that writes them, so that no lock is needed: a producer counts
``offered``, ``refused`` and ``evicted``; the consumer counts ``delivered`` and ``lost``.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

__all__ = ["Counters", "DropReason", "StageCounts"]


class DropReason(StrEnum):
    """Why an item was not delivered. A small fixed set: the values become labels and file fields."""

    QUEUE_FULL = "queue_full"
    """The stage's queue was full."""
    CLOSED = "closed"
    """The stage had stopped accepting, or never started."""
    PAUSED = "paused"
    """The publisher was paused on request."""
    SOCKET_FULL = "socket_full"
    """The socket would have blocked."""
    SEND_ERROR = "send_error"
    """The socket or event plane refused it."""
    ENCODE_ERROR = "encode_error"
    """It could not be encoded."""
    MALFORMED = "malformed"
    """It is not a valid Forward Pass Metrics message."""
    OVERSIZE = "oversize"
    """It is larger than the stage may carry."""
    DISK_ERROR = "disk_error"
    """The file system refused the bytes."""
    DEADLINE = "deadline"
    """The stage was stopped and its time to drain ran out."""
    INTERNAL_ERROR = "internal_error"
    """A bug of ours; the log has the traceback."""


class StageCounts(Struct, frozen=True):
    """A snapshot of one stage, in items."""

    offered: int
    accepted: int
    delivered: int
    pending: int
    dropped: dict[str, int]
    """Everything refused or lost, by reason; reasons that did not occur are absent."""
    faults: int = 0
    """Internal errors that the stage survived; the items that they cost are among the dropped."""

    @property
    def dropped_total(self) -> int:
        """All drops together."""
        return sum(self.dropped.values())


class Counters:
    """The live counts of one stage."""

    __slots__ = ("delivered", "evicted", "faults", "lost", "offered", "refused")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin again at zero, as in a child process after a fork."""
        self.offered = 0
        self.refused: dict[DropReason, int] = {}
        self.evicted = 0
        """Accepted items thrown out by the producer to make room (reason ``queue_full``)."""
        self.delivered = 0
        self.lost: dict[DropReason, int] = {}
        self.faults = 0
        """Internal errors that the consumer's thread survived."""

    def refuse(self, reason: DropReason, count: int = 1) -> None:
        """Count items that were not accepted (the producer's thread)."""
        self.refused[reason] = self.refused.get(reason, 0) + count

    def lose(self, reason: DropReason, count: int = 1) -> None:
        """Count accepted items that will not be delivered (the consumer's thread)."""
        self.lost[reason] = self.lost.get(reason, 0) + count

    @property
    def settled(self) -> int:
        """Accepted items whose fate the consumer has decided."""
        return self.delivered + sum(self.lost.values())

    def snapshot(self) -> StageCounts:
        """Return the counts now. Settled counts are read first, so ``pending`` is never negative."""
        delivered, lost, evicted = self.delivered, dict(self.lost), self.evicted
        refused, offered = dict(self.refused), self.offered
        dropped: dict[str, int] = {}
        for reasons in (refused, lost, {DropReason.QUEUE_FULL: evicted} if evicted else {}):
            for reason, count in reasons.items():
                dropped[reason.value] = dropped.get(reason.value, 0) + count
        accepted = offered - sum(refused.values())
        pending = accepted - delivered - sum(lost.values()) - evicted
        return StageCounts(offered, accepted, delivered, pending, dropped, self.faults)
