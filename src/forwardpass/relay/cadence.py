"""Knows the timing of a relay: how often and how much to drain, when a stop is done, when to retry.

Draining on a tick instead of waking for every message costs a message that comes alone nothing and one
among many much less, but its observed time is the drain's: late by at most one tick plus what the event
loop is busy with. A tick is 5 to 20 ms (and up to 50 ms for the first after a silence) where somebody waits
for the messages: an event plane, or a view. Where only the trace does, it is 50 ms: nobody reads the rows
before the next flush.
"""

from __future__ import annotations

__all__ = [
    "HOLD_SECONDS",
    "IDLE_TICK_SECONDS",
    "MAX_TICK_SECONDS",
    "MIN_TICK_SECONDS",
    "RECEIVE_LIMIT",
    "RECORD_TICK_SECONDS",
    "Backoff",
    "Pace",
    "is_drained",
    "next_tick",
]

MIN_TICK_SECONDS = 0.005
MAX_TICK_SECONDS = 0.020
RECORD_TICK_SECONDS = 0.050
"""Where nobody waits. A wake-up costs 0.3 to 0.4 ms of cold code whatever it finds: at 200 messages a second
a tick of 20 ms took 100 us a message, one of 50 ms 46; at 20,000 a second, 4.1 and 2.7 (2026-12-01)."""
IDLE_TICK_SECONDS = 0.050
"""While nothing comes. Where every core computes, a look takes one from the model for 0.3 ms."""
BUSY_MESSAGES = 256
"""More than this in one tick: drain more often, so that batches stay short."""
CALM_MESSAGES = 64
"""Fewer than this in one tick: drain less often, so that a wake-up is worth it."""

RECEIVE_LIMIT = 1024
"""Most messages taken from one stream before the next one has its turn."""
HOLD_SECONDS = 1.0
"""Longest time that a backlog is held back for the trace. What the plane gets late is late by no more."""

QUIET_SECONDS = 0.1
"""A stream without a message for so long after the stop has nothing more under way on this machine."""
LIVE_SECONDS = 0.5
"""A stream that never falls silent is left this long after the stop, as soon as nothing waits."""

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 5.0


def next_tick(tick: float, messages: int, *, awaited: bool = True) -> float:
    """Return the seconds to the next drain, when the last one, after ``tick``, found ``messages``.

    ``awaited``: somebody besides the trace waits for them.
    """
    if not awaited:
        return RECORD_TICK_SECONDS
    if messages > BUSY_MESSAGES:
        return max(MIN_TICK_SECONDS, min(MAX_TICK_SECONDS, tick) / 2)
    longest = MAX_TICK_SECONDS if messages else IDLE_TICK_SECONDS
    return min(longest, tick * 2 if messages < CALM_MESSAGES else tick)


def is_drained(now: float, stop_asked: float, last_message: float) -> bool:
    """Say whether a stream that is empty at ``now`` has delivered what was sent before ``stop_asked``.

    All are monotonic seconds; ``last_message`` is when the last message was received.
    """
    quiet_for = now - max(stop_asked, last_message)
    return quiet_for >= QUIET_SECONDS or now - stop_asked >= LIVE_SECONDS


class Pace:
    """How much to take of a backlog at once, so that it does not overrun the trace's queue.

    A backlog (the loop was busy, or the reader stalled) waits safely in the sockets. It is taken as fast
    as the trace has room, but only for so long: a trace that is stuck must not hold the plane back. Once
    that long has passed nothing is held back again before the trace moves, so that a trace that never
    does delays the plane once and not over and over.

    Without a plane (``has_plane`` false) nobody waits, and the time counts only while the trace takes
    nothing: a backlog that is more than a second's work is recorded whole.
    """

    __slots__ = ("_gave_up", "_has_plane", "_held_since", "_moves")

    def __init__(self, *, has_plane: bool = True) -> None:
        self._has_plane = has_plane
        self._held_since: float | None = None
        self._gave_up = False
        self._moves = True

    def limit(self, now: float, room: int | None, streams: int) -> int:
        """Return how many messages each of ``streams`` may be drained of at monotonic ``now``.

        ``room`` is what the trace's queue can take; ``None`` without a trace.
        """
        self._moves = room is None or room >= RECEIVE_LIMIT
        if room is None or room >= RECEIVE_LIMIT * streams:
            return RECEIVE_LIMIT
        share = room // max(1, streams)
        if self._held_since is None or (share and not self._has_plane):
            self._held_since = now  # a stuck trace's room is soon shared out
        if now - self._held_since >= HOLD_SECONDS:
            self._gave_up = True
            return RECEIVE_LIMIT
        return share

    def emptied(self) -> None:
        """Take note that nothing waits any more: the next backlog may be held back again.

        Not if this one was given up and the trace has no room to speak of yet.
        """
        if self._moves or not self._gave_up:
            self._held_since = None
            self._gave_up = False


class Backoff:
    """Growing waits between attempts."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds = FIRST_RETRY_SECONDS

    def next(self) -> float:
        """Return the seconds to wait before the next attempt: twice as long each time, up to a limit."""
        seconds, self._seconds = self._seconds, min(LAST_RETRY_SECONDS, self._seconds * 2)
        return seconds

    def reset(self) -> None:
        """Begin again with the shortest wait, after a success."""
        self._seconds = FIRST_RETRY_SECONDS
