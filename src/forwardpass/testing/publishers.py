"""Knows how to be a publisher that keeps its messages in a list."""

from __future__ import annotations

from forwardpass.counters import Counters, DropReason, StageCounts
from forwardpass.errors import ForwardPassError
from forwardpass.publish.stream import EngineView, LateMetrics
from forwardpass.pump import StopReport
from forwardpass.wire.codec import encode, stamp
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics

__all__ = ["ListPublisher"]


class ListPublisher:
    """A :class:`~forwardpass.publish.publisher.Publisher` without thread, socket or heartbeats.

    Messages are numbered and stamped as a real publisher does it, at once; those to be built later, when
    they are looked at. What cannot be built is dropped.
    """

    port: int | None = None

    def __init__(self, dp_rank: int = 0, worker_id: str = "list") -> None:
        self._messages: list[ForwardPassMetrics] = []
        self._late: list[LateMetrics] = []
        self.engine: EngineView | None = None
        """What :meth:`watch` was given."""
        self.queue_notes: list[QueuedRequestMetrics] = []
        """What :meth:`note_queue` was told, oldest first."""
        self.hurried: list[int] = []
        """How many messages had been accepted each time that :meth:`hurry` was called."""
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
    def messages(self) -> list[ForwardPassMetrics]:
        """What was sent, oldest first. What was published to be built later is built now."""
        late, self._late = self._late, []
        for each in late:
            try:
                metrics = each.build()
            except ForwardPassError:
                self._counters.lose(DropReason.INTERNAL_ERROR)
            else:
                self._append(metrics)
        return self._messages

    @property
    def payloads(self) -> list[bytes]:
        """The messages as the bytes that would be on the wire."""
        return [encode(message) for message in self.messages]

    def publish(self, metrics: ForwardPassMetrics) -> bool:
        """Append the stamped message; refuse it while paused or after :meth:`shutdown`."""
        if not self._accepts():
            return False
        self.messages  # noqa: B018  what was published before comes first
        self._append(metrics)
        return True

    def publish_later(self, late: LateMetrics) -> bool:
        """As :meth:`publish`; it is built when :attr:`messages` are looked at."""
        if not self._accepts():
            return False
        self._late.append(late)
        return True

    def hurry(self) -> None:
        """Note that what was published shall go out at once."""
        self.hurried.append(self._counters.snapshot().accepted)

    def _accepts(self) -> bool:
        counters = self._counters
        counters.offered += 1
        if self.closed or self._paused:
            counters.refuse(DropReason.CLOSED if self.closed else DropReason.PAUSED)
            return False
        return True

    def _append(self, metrics: ForwardPassMetrics) -> None:
        seq = len(self._messages)
        self._messages.append(stamp(metrics, seq, self.worker_id or metrics.worker_id, self._dp_rank))
        self._counters.delivered += 1

    def watch(self, engine: EngineView) -> None:
        """Keep whom a heartbeat would ask."""
        self.engine = engine

    def waiting_now(self) -> QueuedRequestMetrics | None:
        """Return what a heartbeat would say of the queue now."""
        return None if self.engine is None else self.engine.waiting_now()

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
