"""Knows how to be a publisher that keeps its messages in a list."""

from __future__ import annotations

from forwardpass.counters import Counters, DropReason, StageCounts
from forwardpass.pump import StopReport
from forwardpass.wire.codec import encode, stamp
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics

__all__ = ["ListPublisher"]


class ListPublisher:
    """A :class:`~forwardpass.publish.publisher.Publisher` without thread, socket or heartbeats.

    Messages are numbered and stamped as a real publisher does it, at once.
    """

    port: int | None = None

    def __init__(self, dp_rank: int = 0, worker_id: str = "list") -> None:
        self.messages: list[ForwardPassMetrics] = []
        """What was sent, oldest first."""
        self.queue_notes: list[QueuedRequestMetrics] = []
        """What :meth:`note_queue` was told, oldest first."""
        self.shutdowns = 0
        """How often :meth:`shutdown` was called."""
        self.worker_id = worker_id
        self._dp_rank = dp_rank
        self._paused = False
        self._counters = Counters()

    @property
    def closed(self) -> bool:
        """Whether it was shut down."""
        return self.shutdowns > 0

    @property
    def payloads(self) -> list[bytes]:
        """The messages as the bytes that would be on the wire."""
        return [encode(message) for message in self.messages]

    def publish(self, metrics: ForwardPassMetrics) -> bool:
        """Append the stamped message; refuse it while paused or after :meth:`shutdown`."""
        counters = self._counters
        counters.offered += 1
        if self.closed or self._paused:
            counters.refuse(DropReason.CLOSED if self.closed else DropReason.PAUSED)
            return False
        seq = len(self.messages)
        self.messages.append(stamp(metrics, seq, self.worker_id or metrics.worker_id, self._dp_rank))
        counters.delivered += 1
        return True

    def note_queue(self, queued: QueuedRequestMetrics) -> None:
        """Append the snapshot."""
        self.queue_notes.append(queued)

    def set_worker_id(self, worker_id: str) -> None:
        """Use ``worker_id`` from the next message on."""
        self.worker_id = worker_id

    def pause(self) -> None:
        """Refuse messages until :meth:`resume`."""
        self._paused = True

    def resume(self) -> None:
        """Accept messages again."""
        self._paused = False

    def shutdown(self, timeout: float = 1.0) -> StopReport:
        """Refuse everything from now on."""
        self.shutdowns += 1
        return StopReport(finished=True, undelivered=0)

    def counts(self) -> StageCounts:
        """Return what was offered and what became of it."""
        return self._counters.snapshot()
