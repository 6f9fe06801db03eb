"""The kind of a pass."""

from __future__ import annotations

import pytest

from forwardpass.analyze.kinds import PassKind, kind_of
from forwardpass.testing.traces import decode_pass, mixed_pass, prefill_pass
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

NOTHING = ScheduledRequestMetrics()


@pytest.mark.parametrize(
    ("scheduled", "wall_time", "kind"),
    [
        (prefill_pass(), 0.02, PassKind.PREFILL),
        (prefill_pass(tokens=0, cached=512), 0.02, PassKind.PREFILL),
        (decode_pass(), 0.02, PassKind.DECODE),
        (ScheduledRequestMetrics(num_decode_requests=1), 0.02, PassKind.DECODE),
        (mixed_pass(), 0.02, PassKind.MIXED),
        (mixed_pass(tokens=0), 0.02, PassKind.MIXED),
        (decode_pass(), 0.0, PassKind.DECODE),
        (NOTHING, 0.0, PassKind.HEARTBEAT),
        (NOTHING, 0.02, PassKind.IDLE),
    ],
)
def test_kind_is_what_was_scheduled(
    scheduled: ScheduledRequestMetrics, wall_time: float, kind: PassKind
) -> None:
    """Requests decide, even without tokens; without requests it is the time that tells a pass from none."""
    assert kind_of(ForwardPassMetrics(wall_time=wall_time, scheduled_requests=scheduled)) is kind


def test_heartbeat_may_have_a_queue() -> None:
    """D-3: a heartbeat with the real queue is still no pass."""
    metrics = ForwardPassMetrics(queued_requests=QueuedRequestMetrics(3, 900))

    assert kind_of(metrics) is PassKind.HEARTBEAT


@pytest.mark.parametrize(("rank", "parallel"), [(1, False), (0, True)])
def test_empty_pass_of_one_of_many_ranks_is_a_dummy(rank: int, parallel: bool) -> None:
    """A data-parallel rank without requests runs along; a rank above 0 shows that there are others."""
    metrics = ForwardPassMetrics(dp_rank=rank, wall_time=0.01)

    assert kind_of(metrics, data_parallel=parallel) is PassKind.DP_DUMMY
