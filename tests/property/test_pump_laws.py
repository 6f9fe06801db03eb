"""Laws of the pump: whatever happens in whatever order, no item is forgotten or counted twice."""

from __future__ import annotations

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.counters import Counters, DropReason
from forwardpass.pump import Overflow, Pump
from forwardpass.testing.clock import ManualClock

CAPACITY = 5
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(1, 8)),
        st.tuples(st.just("turn"), st.sampled_from(["deliver", "lose", "raise", "raise half-way"])),
        st.tuples(st.sampled_from(["pause", "resume", "stop"]), st.none()),
    ),
    max_size=40,
)


class Task:
    """Delivers, loses or fails as told, and keeps what it saw."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.parked = threading.Event()
        self.mode: object = "deliver"
        self.seen: list[int] = []

    def open(self) -> None:
        pass

    def tick(self, now: float, queued: int) -> float:
        self.parked.set()
        return 1e9

    def take(self, items: list[int]) -> None:
        self.seen += items
        for position in range(len(items)):
            if self.mode == "raise" or (self.mode == "raise half-way" and position >= len(items) // 2):
                raise RuntimeError(self.mode)
            if self.mode == "lose":
                self.counters.lose(DropReason.SOCKET_FULL)
            else:
                self.counters.delivered += 1

    def close(self, deadline: float) -> None:
        pass

    def forked(self) -> None:
        pass


@given(operations=OPERATIONS, overflow=st.sampled_from(Overflow))
@settings(max_examples=150, deadline=None)
def test_every_item_has_exactly_one_fate(operations: list[tuple[str, object]], overflow: Overflow) -> None:
    """WIRE-41: offered = accepted + refused, accepted = delivered + lost + queued, after every single
    operation.
    """
    counters, clock = Counters(), ManualClock()
    task = Task(counters)
    pump: Pump[int] = Pump(
        task,
        name="law",
        capacity=CAPACITY,
        counters=counters,
        overflow=overflow,
        clock=clock,
        tick_seconds=3600,
    )
    pump.start()
    assert task.parked.wait(10)
    offered = accepted = 0
    for name, value in operations:
        if name == "offer":
            for _ in range(value):  # type: ignore[call-overload]
                accepted += pump.offer(offered)
                offered += 1
        elif name == "turn":
            task.mode = value
            pump.turn(clock.monotonic())
        elif name == "stop":
            pump.stop(5)
        else:
            getattr(pump, name)()
        counts = counters.snapshot()
        assert counts.offered == offered
        assert counts.accepted == accepted
        assert counts.pending == pump.queued
        assert len(set(task.seen)) == len(task.seen)
    pump.stop(5)

    assert counters.snapshot().pending == 0
    assert task.seen == sorted(task.seen)
