"""Knows when a quiet stream must speak, and what it says then.

Pure: it is told the time and whether a send succeeded.
"""

from __future__ import annotations

from forwardpass.config.settings import HeartbeatMode
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics

__all__ = ["Heartbeat", "heartbeat_message"]

_ZEROS = ForwardPassMetrics()


def heartbeat_message(mode: HeartbeatMode, queued: QueuedRequestMetrics) -> ForwardPassMetrics:
    """Return the message of a stream without passes, identity and ``counter_id`` still to be stamped.

    Nothing is scheduled and ``wall_time`` is 0.0, which readers take as "no pass". ``always-zero`` says
    so about the queue as well, like the reference. ``when-idle`` carries ``queued``, the engine's last
    snapshot: during a long pass, or while every request is blocked, zeros would look like an idle
    worker to whoever keeps the latest message (decision D-3).
    """
    if mode is HeartbeatMode.ALWAYS_ZERO:
        return _ZEROS
    return ForwardPassMetrics(queued_requests=queued)


class Heartbeat:
    """The rhythm of one stream's heartbeats. All times are monotonic seconds of one clock."""

    __slots__ = ("_interval_seconds", "_last_sent", "_last_try")

    def __init__(self, interval_seconds: float, now: float) -> None:
        """Begin at ``now``: the first heartbeat is due one interval later."""
        self._interval_seconds = interval_seconds
        self._last_sent = now
        self._last_try = now

    def sent(self, now: float) -> None:
        """Note that a message, pass or heartbeat, was sent."""
        self._last_sent = now

    def tried(self, now: float) -> None:
        """Note that a heartbeat was attempted; the stream stays silent if that failed."""
        self._last_try = now

    def seconds_left(self, now: float) -> float:
        """Return how long until a heartbeat is due if nothing is sent until then; 0.0 if it is due.

        It is due an interval after the last successful send. A failed one changes nothing about that,
        but the next attempt waits another interval, since every attempt uses up a sequence number.
        """
        return max(0.0, self._interval_seconds - self._silent_seconds(now))

    def overdue(self, now: float) -> bool:
        """Say whether a heartbeat is late by half an interval: better an old queue than none."""
        return self._silent_seconds(now) >= 1.5 * self._interval_seconds

    def _silent_seconds(self, now: float) -> float:
        return now - max(self._last_sent, self._last_try)

    def due(self, now: float) -> bool:
        """Say whether a heartbeat must go out now."""
        return self.seconds_left(now) <= 0.0
