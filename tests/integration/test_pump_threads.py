"""The pump with its real thread: load, races and a task that hangs."""

from __future__ import annotations

import threading
import time

import pytest

from forwardpass.counters import Counters, DropReason, StageCounts
from forwardpass.pump import Overflow, Pump, StopReport


class Sink:
    """Takes items as fast as it can, fails or loses now and then, and keeps what it delivered."""

    def __init__(self, counters: Counters, *, unreliable: bool = False) -> None:
        self.counters = counters
        self.unreliable = unreliable
        self.delivered: list[int] = []
        self.batches = 0

    def open(self) -> None:
        pass

    def tick(self, now: float, queued: int) -> float:
        return 1.0

    def take(self, items: list[int]) -> None:
        self.batches += 1
        for item in items:
            if self.unreliable and item % 250 == 7:
                raise RuntimeError("a bug")
            if self.unreliable and item % 100 == 3:
                self.counters.lose(DropReason.SEND_ERROR)
                continue
            self.delivered.append(item)
            self.counters.delivered += 1

    def close(self, deadline: float) -> None:
        pass

    def forked(self) -> None:
        pass


def test_a_producer_in_a_hurry_does_not_wait_for_the_next_look() -> None:
    """WIRE-40: A thread that would look again in an hour looks at once when it is asked to, each time, and it
    still stops.
    """

    class Patient(Sink):
        def tick(self, now: float, queued: int) -> float:
            return 3600.0

    counters = Counters()
    sink = Patient(counters)
    pump: Pump[int] = Pump(sink, name="patient", capacity=500, counters=counters, tick_seconds=3600.0)
    pump.start()
    for number in range(3):
        pump.offer(number)
        pump.hurry()
        deadline = time.monotonic() + 30
        while sink.delivered[-1:] != [number]:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    assert pump.stop(30.0) == StopReport(True, 0)


@pytest.mark.parametrize("overflow", list(Overflow))
@pytest.mark.parametrize("unreliable", [False, True])
def test_the_counts_add_up_at_every_instant_under_load(overflow: Overflow, unreliable: bool) -> None:
    """WIRE-41: With a producer, a consumer and an observer running flat out, no snapshot has a negative
    number or loses an item, and the final counts are what the producer and the consumer saw themselves.
    """
    counters = Counters()
    sink = Sink(counters, unreliable=unreliable)
    pump: Pump[int] = Pump(sink, name="hammer", capacity=500, counters=counters, overflow=overflow)
    pump.start()
    over = threading.Event()
    snapshots: list[StageCounts] = []
    bad: list[StageCounts] = []

    def observe() -> None:
        while not over.is_set():
            counts = counters.snapshot()
            snapshots.append(counts)
            # one item may be between the producer's count and the queue, one batch at the consumer
            if not 0 <= counts.pending <= 500 + 256 + 1 or counts.accepted > counts.offered:
                bad.append(counts)
            time.sleep(0)

    observer = threading.Thread(target=observe)
    observer.start()
    accepted = 0
    for item in range(150_000):
        accepted += pump.offer(item)
        if item % 400 == 0:
            time.sleep(0.0005)
    report = pump.stop(20)
    over.set()
    observer.join(20)
    counts = counters.snapshot()

    assert report.finished
    assert bad == []
    assert len(snapshots) > 10
    assert (counts.offered, counts.accepted, counts.pending) == (150_000, accepted, 0)
    assert counts.delivered == len(sink.delivered) > 0
    assert counts.delivered + counts.dropped_total == 150_000
    assert sink.delivered == sorted(set(sink.delivered))
    assert ("internal_error" in counts.dropped) is unreliable


def test_items_are_taken_within_a_tick_without_being_woken() -> None:
    """An offer reaches the task although nobody is notified."""
    counters = Counters()
    sink = Sink(counters)
    pump: Pump[int] = Pump(sink, name="poll", capacity=10, counters=counters)
    pump.start()
    try:
        pump.offer(1)
        deadline = time.monotonic() + 10
        while not sink.delivered and time.monotonic() < deadline:
            time.sleep(0.001)

        assert sink.delivered == [1]
    finally:
        pump.stop(5)


def test_eight_threads_may_stop_at_once() -> None:
    """Every stop returns the same report, nothing deadlocks, and no leftover is counted twice."""
    for _ in range(20):
        counters = Counters()
        sink = Sink(counters)
        pump: Pump[int] = Pump(sink, name="stops", capacity=10_000, counters=counters)
        pump.start()
        for item in range(5000):
            pump.offer(item)
        reports: list[StopReport] = []
        barrier = threading.Barrier(8)

        def stop(pump: Pump[int] = pump, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(10)
            reports.append(pump.stop(10))  # noqa: B023

        threads = [threading.Thread(target=stop) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

        assert reports == [StopReport(finished=True, undelivered=0)] * 8
        assert counters.snapshot() == StageCounts(5000, 5000, 5000, 0, {})


def test_offers_that_race_with_stop_are_delivered_lost_or_refused() -> None:
    """A producer that goes on while another thread stops ends with every item accounted for."""
    for _ in range(20):
        counters = Counters()
        pump: Pump[int] = Pump(Sink(counters), name="race", capacity=100, counters=counters)
        pump.start()
        enough = threading.Event()

        def produce(pump: Pump[int] = pump, enough: threading.Event = enough) -> None:
            while not enough.is_set():
                pump.offer(1)

        producer = threading.Thread(target=produce)
        producer.start()
        time.sleep(0.002)
        pump.stop(10)
        deadline = time.monotonic() + 10
        while "closed" not in counters.snapshot().dropped and time.monotonic() < deadline:
            time.sleep(0.001)
        enough.set()
        producer.join(10)
        pump.stop(10)
        counts = counters.snapshot()

        assert counts.pending == 0
        assert counts.dropped.get("closed", 0) > 0
        assert counts.delivered + counts.dropped_total == counts.offered


def test_a_stop_leaves_the_task_time_to_close() -> None:
    """TRACE-53: However much is queued, draining ends early enough for what a close has to write."""
    counters = Counters()
    sink = Sink(counters)
    left: list[float] = []

    def take(items: list[int]) -> None:
        time.sleep(0.02)
        counters.delivered += len(items)

    sink.take = take  # type: ignore[method-assign]
    sink.close = lambda deadline: left.append(deadline - time.monotonic())  # type: ignore[method-assign]
    pump: Pump[int] = Pump(sink, name="long", capacity=100_000, counters=counters)
    pump.start()
    pump.offer_many(range(100_000))  # 391 batches, 8 s
    report = pump.stop(2.0)

    assert report.finished
    assert 0.0 < left[0] <= 0.2
    assert counters.snapshot().dropped == {"deadline": report.undelivered}


def test_a_stuck_task_cannot_hold_up_a_stop() -> None:
    """When take() hangs, stop returns within its time, says so, and a later stop sees the end."""
    counters = Counters()
    sink = Sink(counters)
    release = threading.Event()
    entered = threading.Event()

    def hang(items: list[int]) -> None:
        entered.set()
        release.wait(30)
        counters.delivered += len(items)

    sink.take = hang  # type: ignore[method-assign]
    pump: Pump[int] = Pump(sink, name="stuck", capacity=10, counters=counters)
    pump.start()
    pump.offer(1)
    assert entered.wait(10)
    pump.offer(2)
    begin = time.monotonic()
    stuck = pump.stop(0.2)
    took = time.monotonic() - begin
    release.set()
    later = pump.stop(10)

    assert stuck == StopReport(finished=False, undelivered=2)
    assert took < 2.0
    assert later == StopReport(finished=True, undelivered=1)
    assert counters.snapshot().dropped == {"deadline": 1}
