"""Knows how to publish nothing, so that a disabled stream costs the engine one empty call."""

from __future__ import annotations

from forwardpass.counters import StageCounts
from forwardpass.pump import StopReport
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics

__all__ = ["NullPublisher"]


class NullPublisher:
    """A :class:`~forwardpass.publish.publisher.Publisher` of a stream that is off. Counts nothing."""

    __slots__ = ()

    port: int | None = None

    def publish(self, metrics: ForwardPassMetrics) -> bool:
        """Return False."""
        return False

    def note_queue(self, queued: QueuedRequestMetrics) -> None:
        """Do nothing."""

    def set_worker_id(self, worker_id: str) -> None:
        """Do nothing."""

    def pause(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""

    def shutdown(self, timeout: float = 1.0) -> StopReport:
        """Do nothing, successfully."""
        return StopReport(finished=True, undelivered=0)

    def counts(self) -> StageCounts:
        """Return zeros."""
        return StageCounts(offered=0, accepted=0, delivered=0, pending=0, dropped={})
