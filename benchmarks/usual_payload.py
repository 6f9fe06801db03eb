"""Knows a payload of ordinary size and content, the same for every benchmark that moves bytes."""

from __future__ import annotations

from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

__all__ = ["PAYLOAD"]

PAYLOAD = encode(
    ForwardPassMetrics(
        worker_id="7587890123456789012",
        counter_id=123_456,
        wall_time=0.0123,
        scheduled_requests=ScheduledRequestMetrics(3, 4096, 123.5, 1000, 250, 1_234_567, 998.25),
        queued_requests=QueuedRequestMetrics(12, 12_345, 33.5, 4, 5555, 12.25),
    )
)
