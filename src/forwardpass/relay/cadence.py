"""Knows how often streams are drained, when a stopping stream is done, and how long to wait after a failure.

Draining on a tick instead of waking for every message costs a message that comes alone nothing and one
among many much less, but its observed time is the drain's: late by at most one tick (5 to 20 ms) plus
what the event loop is busy with.
"""

from __future__ import annotations

__all__ = ["MAX_TICK_SECONDS", "MIN_TICK_SECONDS", "Backoff", "is_drained", "next_tick"]

MIN_TICK_SECONDS = 0.005
MAX_TICK_SECONDS = 0.020
BUSY_MESSAGES = 256
"""More than this in one tick: drain more often, so that batches stay short."""
CALM_MESSAGES = 64
"""Fewer than this in one tick: drain less often, so that a wake-up is worth it."""

QUIET_SECONDS = 0.1
"""A stream without a message for so long after the stop has nothing more under way on this machine."""
LIVE_SECONDS = 0.5
"""A stream that never falls silent is left this long after the stop, as soon as nothing waits."""

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 5.0


def next_tick(tick: float, messages: int) -> float:
    """Return the seconds to the next drain, when the last one, after ``tick``, found ``messages``."""
    if messages > BUSY_MESSAGES:
        return max(MIN_TICK_SECONDS, tick / 2)
    if messages < CALM_MESSAGES:
        return min(MAX_TICK_SECONDS, tick * 2)
    return tick


def is_drained(now: float, stop_asked: float, last_message: float) -> bool:
    """Say whether a stream that is empty at ``now`` has delivered what was sent before ``stop_asked``.

    All are monotonic seconds; ``last_message`` is when the last message was received.
    """
    quiet_for = now - max(stop_asked, last_message)
    return quiet_for >= QUIET_SECONDS or now - stop_asked >= LIVE_SECONDS


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
