"""The publisher of a stream that is off."""

from __future__ import annotations

from forwardpass.counters import StageCounts
from forwardpass.publish.null import NullPublisher
from forwardpass.publish.publisher import Publisher
from forwardpass.pump import StopReport
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics


def test_it_accepts_every_call_and_does_nothing() -> None:
    """Each call of the protocol works, nothing is accepted or counted, and no port is bound."""
    publisher: Publisher = NullPublisher()
    publisher.note_queue(QueuedRequestMetrics())
    publisher.set_worker_id("1")
    publisher.pause()
    publisher.resume()

    assert not publisher.publish(ForwardPassMetrics())
    assert publisher.port is None
    assert publisher.shutdown() == StopReport(finished=True, undelivered=0)
    assert publisher.counts() == StageCounts(0, 0, 0, 0, {})
