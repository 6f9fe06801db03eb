"""Knows what a rank that is measured tells its launcher, and what it hears from it: a word now and then."""

from __future__ import annotations

import threading

from forwardpass.bench.handover import Handover, RankProgress
from forwardpass.bench.points import Point
from forwardpass.bench.runlog import RunLog
from forwardpass.clock import Clock

__all__ = ["LauncherLine"]

EVERY_SECONDS = 0.2
PAUSE_SECONDS = 0.02


class LauncherLine:
    """The line between one rank and its launcher. For the engine's thread alone, and never while a pass is
    timed: a file is looked for or written.
    """

    def __init__(self, handover: Handover, log: RunLog, clock: Clock, *, await_server: bool) -> None:
        self._handover, self._log, self._clock = handover, log, clock
        self._next = 0.0
        self._awaited = not await_server
        self._pause = threading.Event()

    def awaited(self) -> bool:
        """Say whether somebody waits for the run by now; if not, a moment has passed.

        vLLM's servers hang if their engine ends between its start and theirs, whatever the reason. So a run
        that may end it does not begin before a server can notice.
        """
        if not self._awaited and not self._handover.led:
            self._pause.wait(PAUSE_SECONDS)
            return False
        self._awaited = True
        return True

    def exchange(self) -> bool:
        """Say how far the rank is, and return whether it is to end; most calls do nothing and say no."""
        now = self._clock.monotonic()
        if now < self._next:
            return False
        self._next = now + EVERY_SECONDS
        self.report()
        return self._handover.stop_asked()

    def report(self) -> None:
        """Say how far the rank is."""
        log = self._log
        expected = log.grid.expected_points if log.grid is not None else 0
        last = log.measured[-1].point if log.measured else None
        progress = RankProgress(log.settled_points, expected, "" if last is None else _words(last))
        self._handover.report(log.dp_rank, progress)


def _words(point: Point) -> str:
    new = f" of {point.total_prefill_tokens:,} tokens" if point.total_prefill_tokens else ""
    return f"{point.point_type.value}{new}, batch {point.batch_size:,}, {point.total_kv_read_tokens:,} read"
