"""When a quiet stream speaks, and what it says."""

from __future__ import annotations

from forwardpass.config.settings import HeartbeatMode
from forwardpass.publish.heartbeat import Heartbeat, heartbeat_message
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

QUEUE = QueuedRequestMetrics(
    num_prefill_requests=3,
    sum_prefill_tokens=90,
    var_prefill_length=1.5,
    num_decode_requests=2,
    sum_decode_kv_tokens=70,
    var_decode_kv_tokens=2.5,
)


def test_the_first_heartbeat_is_due_one_interval_after_the_start() -> None:
    """Nothing is due before the interval has passed, and it is due exactly then."""
    heartbeat = Heartbeat(1.0, now=100.0)

    assert not heartbeat.due(100.999)
    assert heartbeat.due(101.0)
    assert heartbeat.seconds_left(100.25) == 0.75


def test_a_sent_message_postpones_it() -> None:
    """The silence counts from the last successful send."""
    heartbeat = Heartbeat(1.0, now=100.0)
    heartbeat.sent(100.9)

    assert not heartbeat.due(101.8)
    assert heartbeat.due(101.9)


def test_it_repeats_once_per_interval_of_silence() -> None:
    """WIRE-42: Looking every 10 ms for ten seconds gives ten heartbeats, not one and not a thousand."""
    heartbeat, beats = Heartbeat(1.0, now=0.0), 0
    for step in range(1, 1001):
        now = step / 100
        if heartbeat.due(now):
            heartbeat.tried(now)
            heartbeat.sent(now)
            beats += 1

    assert beats == 10


def test_a_failed_heartbeat_is_retried_an_interval_later() -> None:
    """A refused send is no send, yet the next attempt waits, since each uses up a sequence number."""
    heartbeat = Heartbeat(1.0, now=0.0)
    heartbeat.tried(1.0)

    assert not heartbeat.due(1.5)
    assert heartbeat.due(2.0)


def test_it_never_asks_for_a_negative_sleep() -> None:
    """An overdue heartbeat is due now."""
    assert Heartbeat(1.0, now=0.0).seconds_left(50.0) == 0.0


def test_always_zero_says_nothing_of_the_queue() -> None:
    """WIRE-43, D-3: the reference's heartbeat is all defaults, whatever waits."""
    assert heartbeat_message(HeartbeatMode.ALWAYS_ZERO, QUEUE) == ForwardPassMetrics()


def test_when_idle_carries_the_real_queue() -> None:
    """WIRE-42, D-3: zero scheduled, wall_time 0.0, and the engine's last queue snapshot."""
    message = heartbeat_message(HeartbeatMode.WHEN_IDLE, QUEUE)

    assert message.queued_requests == QUEUE
    assert message.scheduled_requests == ScheduledRequestMetrics()
    assert message.wall_time == 0.0


def test_when_idle_with_an_empty_queue_is_all_zeros() -> None:
    """D-3: an idle engine's heartbeat is the same in both modes."""
    message = heartbeat_message(HeartbeatMode.WHEN_IDLE, QueuedRequestMetrics())

    assert message == ForwardPassMetrics()
