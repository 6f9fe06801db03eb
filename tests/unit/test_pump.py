"""The pump, one turn at a time. Its thread is parked between the turns that a test makes."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from parked_pump import make, parked

from forwardpass.pump import (
    BATCH_ITEMS,
    QUIET_TICK_SECONDS,
    TICK_SECONDS,
    Overflow,
)

# --- queue ----------------------------------------------------------------------------------------


def test_items_are_taken_in_order_and_in_batches() -> None:
    """A turn takes at most one batch, in the order of the offers, and asks to be called again at once."""
    with parked() as (pump, task, clock):
        for item in range(BATCH_ITEMS + 10):
            assert pump.offer(item)
        first_delay = pump.turn(clock.monotonic())
        after_first = len(task.taken)
        pump.turn(clock.monotonic())

        assert first_delay == 0.0
        assert after_first == BATCH_ITEMS
        assert task.taken == list(range(BATCH_ITEMS + 10))
        assert pump.queued == 0


def test_the_tick_comes_before_the_take_and_knows_what_waits() -> None:
    """What is due at a moment is done before items that arrived by then, and the task is told of those."""
    with parked() as (pump, task, clock):
        pump.offer(1)
        pump.offer(2)
        pump.turn(clock.monotonic())

        assert task.log == [("tick", 2), ("take", [1, 2])]


def test_a_full_queue_refuses_the_newest() -> None:
    """WIRE-40: With DROP_NEWEST the offer is refused as queue_full and what waits stays."""
    with parked(capacity=2) as (pump, task, clock):
        accepted = [pump.offer(item) for item in range(4)]
        pump.turn(clock.monotonic())

        assert accepted == [True, True, False, False]
        assert task.taken == [0, 1]
        counts = pump.counters.snapshot()
        assert (counts.offered, counts.accepted, counts.delivered) == (4, 2, 2)
        assert counts.dropped == {"queue_full": 2}


def test_a_full_queue_may_evict_the_oldest() -> None:
    """With DROP_OLDEST every offer is accepted and the oldest accepted ones are lost as queue_full."""
    with parked(capacity=2, overflow=Overflow.DROP_OLDEST) as (pump, task, clock):
        accepted = [pump.offer(item) for item in range(5)]
        before = pump.counters.snapshot()
        pump.turn(clock.monotonic())

        assert accepted == [True] * 5
        assert task.taken == [3, 4]
        assert (before.accepted, before.pending, before.dropped) == (5, 2, {"queue_full": 3})
        assert pump.counters.snapshot().pending == 0


@pytest.mark.parametrize("overflow", list(Overflow))
def test_offering_many_is_offering_each(overflow: Overflow) -> None:
    """One call with many items queues, evicts, refuses and counts exactly what as many calls would."""
    with (
        parked(capacity=3, overflow=overflow) as (one, task_of_one, clock),
        parked(capacity=3, overflow=overflow) as (many, task_of_many, _),
    ):
        for items in ([1, 2], [], [3], [4, 5, 6, 7], [8]):
            accepted = sum(one.offer(item) for item in items)

            assert many.offer_many(items) == accepted
            assert many.counters.snapshot() == one.counters.snapshot()
        one.pause()
        many.pause()
        assert many.offer_many([9, 10]) == one.offer(9) + one.offer(10) == 0
        one.turn(clock.monotonic())
        many.turn(clock.monotonic())

        assert task_of_many.taken == task_of_one.taken
        assert many.counters.snapshot() == one.counters.snapshot()


@pytest.mark.parametrize("together", [False, True])
def test_much_that_waits_wakes_the_thread(together: bool) -> None:
    """A thread that sleeps for an hour takes what waits once it is ``wake_items``, again and again."""
    pump, task, _ = make(wake_items=4)
    pump.start()
    for _ in range(3):
        if together:
            pump.offer_many(range(6))
        else:
            for item in range(6):
                pump.offer(item)
        waits, deadline = threading.Event(), time.monotonic() + 10
        while pump.queued >= 4 and time.monotonic() < deadline:
            waits.wait(0.001)

        assert pump.queued < 4
    pump.stop(5)
    assert task.taken == [*range(6)] * 3


def test_little_that_waits_wakes_nobody() -> None:
    """Fewer than ``wake_items`` wait for the next look."""
    with parked(wake_items=4) as (pump, task, clock):
        pump.offer_many([1, 2])
        pump.offer(3)
        waits = threading.Event()
        waits.wait(0.05)

        assert task.names() == []
        pump.turn(clock.monotonic())
        assert task.taken == [1, 2, 3]


# --- how long a turn lets the thread sleep --------------------------------------------------------


def test_a_turn_asks_for_a_short_sleep_while_busy_and_a_longer_one_when_quiet() -> None:
    """Twice as long after each look that found nothing, up to 50 ms; 20 ms again with the next item."""
    pump, task, clock = make(tick_seconds=TICK_SECONDS)
    done, test_thread = threading.Event(), threading.current_thread()

    def tick(now: float, queued: int) -> float:
        if threading.current_thread() is not test_thread:
            task.first_tick.set()
            done.wait(30)  # the pump's own thread stays out of the way
        return 1e9

    task.tick = tick  # type: ignore[method-assign]
    pump.start()
    assert task.first_tick.wait(10)
    pump.offer(1)
    busy = pump.turn(clock.monotonic())
    quiet = [pump.turn(clock.monotonic()) for _ in range(3)]
    pump.offer(2)
    again = pump.turn(clock.monotonic())
    done.set()
    pump.stop(5)

    assert (busy, again) == (TICK_SECONDS, TICK_SECONDS)
    assert quiet == [2 * TICK_SECONDS, QUIET_TICK_SECONDS, QUIET_TICK_SECONDS]
    assert task.taken == [1, 2]


@pytest.mark.parametrize(
    ("wanted", "expected"), [(0.001, 0.001), (0.0, 0.0), (-3.0, 0.0), (9.0, 2 * TICK_SECONDS)]
)
def test_a_task_may_ask_to_be_called_earlier(wanted: float, expected: float) -> None:
    """The sleep is the shorter of the tick and what the task wants, and never negative."""
    pump, task, clock = make(tick_seconds=TICK_SECONDS)
    task.wanted = wanted

    assert expected == pump.turn(clock.monotonic())


# --- errors of the task ---------------------------------------------------------------------------


def test_an_internal_error_costs_only_what_was_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    """What take() counted keeps its fate, the rest is internal_error, and later items are fine."""
    with parked() as (pump, task, clock):
        for item in range(5):
            pump.offer(item)
        task.fail_after = 2
        pump.turn(clock.monotonic())
        broken = pump.counters.snapshot()
        task.fail_after = None
        pump.offer(5)
        pump.turn(clock.monotonic())

        assert (broken.delivered, broken.dropped, broken.pending) == (2, {"internal_error": 3}, 0)
        assert broken.faults == 1
        assert pump.counters.snapshot().delivered == 3
        assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_a_repeated_internal_error_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A bug that strikes with every batch is logged once a minute and counted every time."""
    with parked() as (pump, task, clock):
        task.fail_after = 0
        for item in range(100):
            pump.offer(item)
            pump.turn(clock.monotonic())

        assert len(caplog.records) == 1
        assert pump.counters.snapshot().faults == 100


def test_a_failing_tick_starves_nobody() -> None:
    """Items are taken although tick() raises, and the fault is counted."""
    with parked() as (pump, task, clock):
        task.fail_tick = True
        pump.offer(7)
        delay = pump.turn(clock.monotonic())

        assert task.taken == [7]
        assert pump.counters.snapshot().faults == 1
        assert delay == QUIET_TICK_SECONDS


def test_a_failing_close_is_contained(caplog: pytest.LogCaptureFixture) -> None:
    """stop() succeeds although close() raises; the fault is logged and counted."""
    with parked() as (pump, task, _):
        task.fail_close = True
        report = pump.stop(5)

        assert report.finished
        assert pump.counters.snapshot().faults == 1
        assert "close" in caplog.text


# --- pause ----------------------------------------------------------------------------------------


def test_a_paused_pump_refuses_and_still_delivers_what_it_has() -> None:
    """Offers while paused are refused as paused; earlier items go out; resume accepts again."""
    with parked() as (pump, task, clock):
        pump.offer(1)
        pump.pause()
        assert pump.paused
        refused = pump.offer(2)
        pump.turn(clock.monotonic())
        pump.resume()
        accepted = pump.offer(3)
        pump.turn(clock.monotonic())

        assert (refused, accepted, pump.paused) == (False, True, False)
        assert task.taken == [1, 3]
        assert pump.counters.snapshot().dropped == {"paused": 1}


def test_pausing_twice_is_pausing_once() -> None:
    """One resume undoes any number of pauses, and a resume without a pause changes nothing."""
    with parked() as (pump, _, _clock):
        pump.resume()
        pump.pause()
        pump.pause()
        pump.resume()

        assert pump.offer(1)


def test_pause_and_resume_cannot_revive_a_stopped_pump() -> None:
    """After stop, pause and resume change nothing: offers stay refused as closed."""
    with parked() as (pump, _, _clock):
        pump.stop(5)
        pump.pause()
        pump.resume()

        assert not pump.paused
        assert not pump.offer(1)
        assert pump.counters.snapshot().dropped == {"closed": 1}
