"""Knows how several simulated ranks share one timeline, with the faults that were asked for.

One loop lets the rank (or fault) whose time comes first take its turn. In real time the loop waits for
that moment; in simulated time the moment is simply now.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from math import inf
from threading import Event
from typing import Protocol

from msgspec import Struct

from forwardpass.clock import Clock, SystemClock
from forwardpass.counters import StageCounts
from forwardpass.engines.mock.engine import MockEngine
from forwardpass.engines.mock.scheduler import Totals

__all__ = ["FastTime", "MockCluster", "Pacer", "RankReport", "RealTime", "SimulatedTime", "TimedAction"]

_SLICE_SECONDS = 0.05
"""Longest wait before the loop looks whether it should stop."""

TimedAction = tuple[float, Callable[[float], None]]
"""When to act, in seconds since the start, and what to do; called with the time."""


class Pacer(Protocol):
    """What the loop believes about time."""

    def reach(self, moment: float, give_up: Callable[[], bool]) -> float:
        """Return the time once ``moment`` (seconds since the start) has come, or once ``give_up()``."""
        ...


class SimulatedTime:
    """Time jumps to the next event."""

    def reach(self, moment: float, give_up: Callable[[], bool]) -> float:
        """Return ``moment``."""
        return moment


class FastTime:
    """Time jumps to the next event, but not while too much of what was published still waits to be sent."""

    CHECK_EVERY = 64
    MOST_WAITING = 2000

    def __init__(self, waiting: Callable[[], int]) -> None:
        """``waiting()`` is how many messages wait."""
        self._waiting = waiting
        self._calls = 0
        self._never = Event()

    def reach(self, moment: float, give_up: Callable[[], bool]) -> float:
        """Return ``moment``, as soon as the publishers keep up."""
        self._calls += 1
        if self._calls % self.CHECK_EVERY == 0:
            while self._waiting() > self.MOST_WAITING and not give_up():
                self._never.wait(0.001)
        return moment


class RealTime:
    """Time passes by itself, from the first call on."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._started_at: float | None = None
        self._never = Event()

    def reach(self, moment: float, give_up: Callable[[], bool]) -> float:
        """Wait for ``moment``, in slices, and return the time since the start."""
        if self._started_at is None:
            self._started_at = self._clock.monotonic()
        while True:
            now = self._clock.monotonic() - self._started_at
            if now >= moment or give_up():
                return now
            self._never.wait(min(moment - now, _SLICE_SECONDS))


class RankReport(Struct, frozen=True):
    """What one rank did."""

    dp_rank: int
    port: int | None
    passes: int
    requests: Totals
    published: StageCounts
    """Of the publisher since the rank's last start."""


class MockCluster:
    """Ranks that run side by side and know nothing of each other."""

    def __init__(
        self,
        engines: Sequence[MockEngine],
        *,
        actions: Sequence[TimedAction] = (),
        pacer: Pacer | None = None,
    ) -> None:
        self.engines = tuple(engines)
        self._pacer: Pacer = pacer or SimulatedTime()
        turns: list[Callable[[float], float]] = [engine.turn for engine in self.engines]
        turns += [_once(act) for _, act in actions]
        starts = [0.0] * len(self.engines) + [at for at, _ in actions]
        # (time, index): of two events at the same time the lower index, hence a rank, goes first
        self._events = [(at, index) for index, at in enumerate(starts)]
        heapq.heapify(self._events)
        self._turns = turns

    def run(self, seconds: float = inf, *, give_up: Callable[[], bool] = lambda: False) -> float:
        """Run until ``seconds`` after the start or ``give_up()``; in simulated time until nothing is left.

        Returns the time reached. May be called again with a later ``seconds``.
        """
        events, turns, reach, now = self._events, self._turns, self._pacer.reach, 0.0
        while events and not give_up():
            moment, index = events[0]
            reached = reach(min(moment, seconds), give_up)
            if reached < inf:
                now = reached
            if moment > seconds or moment == inf or give_up():
                break
            # A rank that asks for a moment in the past is late; it never goes back in time.
            heapq.heapreplace(events, (max(turns[index](now), moment), index))
        return now

    def report(self) -> tuple[RankReport, ...]:
        """Return what each rank did so far."""
        return tuple(
            RankReport(
                engine.dp_rank, engine.publisher.port, engine.passes, engine.totals, engine.publisher.counts()
            )
            for engine in self.engines
        )

    def close(self) -> None:
        """Shut every publisher down."""
        for engine in self.engines:
            engine.close()


def _once(act: Callable[[float], None]) -> Callable[[float], float]:
    def turn(now: float) -> float:
        act(now)
        return inf

    return turn
