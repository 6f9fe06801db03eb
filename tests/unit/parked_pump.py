"""A pump whose thread is parked between the turns that a test makes, and the task it runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from forwardpass.counters import Counters
from forwardpass.pump import (
    Overflow,
    Pump,
)
from forwardpass.testing.clock import ManualClock

PARKED_SECONDS = 3600.0


class Task:
    """Remembers what it was asked to do, and fails on request."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.log: list[tuple[str, object]] = []
        self.opened = threading.Event()
        self.first_tick = threading.Event()
        self.wanted = 1e9
        self.open_error: BaseException | None = None
        self.gate: threading.Event | None = None
        self.fail_tick = False
        self.fail_close = False
        self.fail_after: int | None = None

    def open(self) -> None:
        if self.gate is not None:
            self.gate.wait(10)
        if self.open_error is not None:
            raise self.open_error
        self.opened.set()

    def tick(self, now: float, queued: int) -> float:
        self.log.append(("tick", queued))
        self.first_tick.set()
        if self.fail_tick:
            raise RuntimeError("tick")
        return self.wanted

    def take(self, items: list[int]) -> None:
        self.log.append(("take", list(items)))
        for position, _ in enumerate(items):
            if self.fail_after is not None and position >= self.fail_after:
                raise RuntimeError("take")
            self.counters.delivered += 1

    def close(self, deadline: float) -> None:
        self.log.append(("close", deadline))
        if self.fail_close:
            raise RuntimeError("close")

    def forked(self) -> None:
        self.log.append(("forked", None))

    @property
    def taken(self) -> list[int]:
        return [item for kind, value in self.log if kind == "take" for item in value]  # type: ignore[attr-defined]

    def names(self) -> list[str]:
        return [kind for kind, _ in self.log]


def make(
    capacity: int = 1000,
    overflow: Overflow = Overflow.DROP_NEWEST,
    tick_seconds: float = PARKED_SECONDS,
    wake_items: int | None = None,
) -> tuple[Pump[int], Task, ManualClock]:
    """Return a pump that was not started, its task and its clock."""
    counters, clock = Counters(), ManualClock()
    task = Task(counters)
    pump: Pump[int] = Pump(
        task,
        name="test",
        capacity=capacity,
        counters=counters,
        overflow=overflow,
        clock=clock,
        tick_seconds=tick_seconds,
        wake_items=wake_items,
    )
    return pump, task, clock


@contextmanager
def parked(
    capacity: int = 1000, overflow: Overflow = Overflow.DROP_NEWEST, wake_items: int | None = None
) -> Iterator[tuple[Pump[int], Task, ManualClock]]:
    """Start a pump whose thread sleeps for an hour after its first turn, so that the test takes the turns."""
    pump, task, clock = make(capacity, overflow, wake_items=wake_items)
    pump.start()
    try:
        assert task.first_tick.wait(10)
        task.log.clear()
        yield pump, task, clock
    finally:
        pump.stop(5)
