"""How a pump starts and stops."""

from __future__ import annotations

import threading

import pytest
from parked_pump import Task, make, parked

from forwardpass.counters import Counters
from forwardpass.pump import BATCH_ITEMS, Pump, StopReport


def test_a_pump_that_was_never_started_refuses_and_stops() -> None:
    """Without start, offers are refused as closed, stop has nothing to do and a late start is an error."""
    pump, task, _ = make()
    offered = pump.offer(1)
    report = pump.stop(1)

    assert not offered
    assert pump.counters.snapshot().dropped == {"closed": 1}
    assert report == StopReport(finished=True, undelivered=0)
    assert task.log == []
    with pytest.raises(RuntimeError):
        pump.start()


def test_a_pump_starts_once() -> None:
    """A second start is an error and leaves the running pump alone."""
    with parked() as (pump, task, clock):
        with pytest.raises(RuntimeError):
            pump.start()
        pump.offer(1)
        pump.turn(clock.monotonic())

        assert task.taken == [1]


def test_start_raises_what_open_raised() -> None:
    """The task's own error comes out of start; the pump is closed and stop is harmless."""
    pump, task, _ = make()
    task.open_error = OSError("no such device")
    with pytest.raises(OSError, match="no such device"):
        pump.start()

    assert not pump.offer(1)
    assert pump.stop(1).finished
    assert pump.counters.snapshot().dropped == {"closed": 1}
    assert task.names() == []


def test_a_start_that_takes_too_long_leaves_nothing_behind() -> None:
    """After TimeoutError the thread closes what open acquires late, and ends."""
    pump, task, _ = make()
    task.gate = threading.Event()
    with pytest.raises(TimeoutError):
        pump.start(timeout=0.01)
    refused = pump.offer(1)
    task.gate.set()
    report = pump.stop(5)

    assert not refused
    assert report.finished
    assert task.opened.is_set()
    assert task.names() == ["close"]


def test_stop_delivers_what_is_queued_and_then_closes_the_task() -> None:
    """Everything accepted before stop is taken, then close is called once with the deadline."""
    with parked() as (pump, task, clock):
        for item in range(3 * BATCH_ITEMS):
            pump.offer(item)
        report = pump.stop(timeout=7)

        assert report == StopReport(finished=True, undelivered=0)
        assert task.taken == list(range(3 * BATCH_ITEMS))
        assert task.log[-1] == ("close", clock.monotonic() + 7)


def test_stop_is_idempotent() -> None:
    """A second stop reports the same and closes nothing twice; offers afterwards are refused as closed."""
    with parked() as (pump, task, _):
        pump.offer(1)
        first, second = pump.stop(5), pump.stop(5)
        refused = pump.offer(2)

        assert first == second == StopReport(finished=True, undelivered=0)
        assert not refused
        assert task.names().count("close") == 1
        assert pump.counters.snapshot().dropped == {"closed": 1}


def test_stop_without_time_loses_the_queue_and_says_so() -> None:
    """With no time to drain, queued items are lost as deadline and the report counts them."""
    with parked() as (pump, task, _):
        pump.offer(1)
        pump.offer(2)
        pump.stop(0)
        report = pump.stop(5)

        assert report == StopReport(finished=True, undelivered=2)
        assert task.taken == []
        counts = pump.counters.snapshot()
        assert (counts.dropped, counts.pending) == ({"deadline": 2}, 0)


def test_the_drain_stops_at_its_deadline() -> None:
    """A drain that runs out of time loses the rest as deadline and leaves time to close."""
    with parked(capacity=10_000) as (pump, task, clock):
        for item in range(4 * BATCH_ITEMS):
            pump.offer(item)
        take = task.take

        def slow_take(items: list[int]) -> None:
            take(items)
            clock.advance(6)  # of 10 seconds, of which 9 are for draining

        task.take = slow_take  # type: ignore[method-assign]
        begin = clock.monotonic()
        report = pump.stop(10)

        assert report == StopReport(finished=True, undelivered=2 * BATCH_ITEMS)
        assert pump.counters.snapshot().dropped == {"deadline": 2 * BATCH_ITEMS}
        assert task.log[-1] == ("close", begin + 10)


def test_a_task_may_stop_its_own_pump() -> None:
    """stop() from the pump's thread returns at once instead of waiting for itself."""
    pump, task, _ = make()
    reports: list[StopReport] = []

    def tick(now: float, queued: int) -> float:
        reports.append(pump.stop(3600))
        return 0.0

    task.tick = tick  # type: ignore[method-assign]
    pump.start()
    final = pump.stop(10)

    assert [report.finished for report in reports] == [False]
    assert final.finished
    assert task.names() == ["close"]


def test_no_thread_means_a_closed_pump(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the process may start no thread, start raises RuntimeError and offers are refused as closed."""
    pump, _, _ = make()

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        pump.start()

    assert not pump.offer(1)
    assert pump.counters.snapshot().dropped == {"closed": 1}


def test_an_offer_overtaken_by_a_stop_is_settled_by_the_next_one() -> None:
    """An item appended after the thread's last look is pending, then lost as deadline: never forgotten."""
    counters = Counters()
    task = Task(counters)

    class StopsMidOffer(int):
        """A capacity that stops the pump when it is compared: after the state was seen to be open."""

        def __le__(self, other: int) -> bool:
            assert pump.stop(5).finished
            return False

    pump: Pump[int] = Pump(task, name="test", capacity=StopsMidOffer(10), counters=counters)
    pump.start()
    accepted = pump.offer(1)
    overtaken = counters.snapshot()
    report = pump.stop(5)

    assert accepted
    assert (overtaken.pending, overtaken.dropped) == (1, {})
    assert report == StopReport(finished=True, undelivered=1)
    assert (counters.snapshot().pending, counters.snapshot().dropped) == (0, {"deadline": 1})
