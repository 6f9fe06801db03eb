"""Knows how a second publisher speaks for the same rank."""

from __future__ import annotations

from forwardpass.counters import StageCounts
from forwardpass.publish.publisher import Publisher
from forwardpass.pump import StopReport
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics

__all__ = ["DuplicatePublisher"]


class DuplicatePublisher:
    """Two publishers that are told the same. Each numbers by itself; what is reported is the first's."""

    def __init__(self, first: Publisher, second: Publisher) -> None:
        self._first = first
        self._second = second
        self._both = (first, second)

    @property
    def port(self) -> int | None:
        """The first publisher's port."""
        return self._first.port

    def publish(self, metrics: ForwardPassMetrics) -> bool:
        """Publish twice."""
        accepted = self._first.publish(metrics)
        self._second.publish(metrics)
        return accepted

    def note_queue(self, queued: QueuedRequestMetrics) -> None:
        """Note the queue twice."""
        for publisher in self._both:
            publisher.note_queue(queued)

    def set_worker_id(self, worker_id: str) -> None:
        """Rename both."""
        for publisher in self._both:
            publisher.set_worker_id(worker_id)

    def pause(self) -> None:
        """Pause both."""
        for publisher in self._both:
            publisher.pause()

    def resume(self) -> None:
        """Resume both."""
        for publisher in self._both:
            publisher.resume()

    def shutdown(self, timeout: float = 1.0) -> StopReport:
        """Shut both down, and report the first."""
        report = self._first.shutdown(timeout)
        self._second.shutdown(timeout)
        return report

    def counts(self) -> StageCounts:
        """Return the first publisher's counts."""
        return self._first.counts()
