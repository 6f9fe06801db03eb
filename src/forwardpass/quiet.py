"""Knows how to say the first of a kind at once, and after that one total a minute."""

from __future__ import annotations

import logging
from collections.abc import Hashable

from forwardpass.clock import Clock, SystemClock

__all__ = ["QuietLog"]

MAX_KINDS = 512
_OTHERS = object()


class QuietLog:
    """A logger for faults that may repeat a million times.

    A kind that occurred before is said again when it next occurs after the interval, with the number of
    times it was not said. At most 512 kinds are told apart; any further ones share one line a minute, so
    that a hostile peer can grow neither memory nor the log. Safe to call from several threads: a race
    may at worst log a line twice or miss one in a count.
    """

    __slots__ = ("_clock", "_interval_seconds", "_kinds", "_logger")

    def __init__(
        self, logger: logging.Logger, clock: Clock | None = None, interval_seconds: float = 60.0
    ) -> None:
        self._logger = logger
        self._clock: Clock = clock or SystemClock()
        self._interval_seconds = interval_seconds
        self._kinds: dict[Hashable, list[float]] = {}  # kind -> [last said at, unsaid since, total]

    def warning(self, kind: Hashable, message: str) -> None:
        """Log ``message`` if its kind was not logged within the interval; count it otherwise."""
        self._say(logging.WARNING, kind, message)

    def error(self, kind: Hashable, message: str, *, exc_info: bool | BaseException = False) -> None:
        """As :meth:`warning`, at level ERROR, with the current traceback on request, or an exception's."""
        self._say(logging.ERROR, kind, message, exc_info=exc_info)

    def total(self, kind: Hashable) -> int:
        """Return how often this kind occurred (0 for a kind that shares a line with others)."""
        state = self._kinds.get(kind)
        return int(state[2]) if state else 0

    def _say(
        self, level: int, kind: Hashable, message: str, *, exc_info: bool | BaseException = False
    ) -> None:
        now = self._clock.monotonic()
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            kind = _OTHERS
        state = self._kinds.get(kind)
        if state is None:
            self._kinds[kind] = [now, 0, 1]
            self._logger.log(level, "%s", message, exc_info=exc_info)
            return
        state[2] += 1
        if now - state[0] < self._interval_seconds:
            state[1] += 1
            return
        repeats, state[0], state[1] = int(state[1]), now, 0
        more = f" (and {repeats} more like it since the last line)" if repeats else ""
        self._logger.log(level, "%s%s; %d in all", message, more, int(state[2]), exc_info=exc_info)
