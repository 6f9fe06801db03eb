"""The timing of a relay, without a clock."""

from __future__ import annotations

import pytest

from forwardpass.relay.cadence import (
    HOLD_SECONDS,
    IDLE_TICK_SECONDS,
    LIVE_SECONDS,
    MAX_TICK_SECONDS,
    MIN_TICK_SECONDS,
    QUIET_SECONDS,
    RECEIVE_LIMIT,
    RECORD_TICK_SECONDS,
    Backoff,
    Pace,
    is_drained,
    next_tick,
)


def _settled_tick(messages_per_second: float) -> float:
    tick = MAX_TICK_SECONDS
    for _ in range(50):
        tick = next_tick(tick, int(messages_per_second * tick))
    return tick


@pytest.mark.parametrize(
    ("per_second", "tick"),
    [(0, 0.050), (1, 0.050), (200, 0.020), (3_000, 0.020), (100_000, 0.005), (1_000_000, 0.005)],
)
def test_tick_follows_the_rate(per_second: float, tick: float) -> None:
    """Silent streams are drained every 50 ms, quiet ones every 20 ms, busy ones every 5 ms."""
    assert _settled_tick(per_second) == pytest.approx(tick)


def test_observed_time_is_late_by_one_tick_at_most() -> None:
    """The stated error of the observed time: 20 ms while messages come, and 50 ms after a silence."""
    ticks = {next_tick(tick, some) for tick in (0.005, 0.01, 0.02, 0.05) for some in range(1, 2000, 7)}
    silent = {next_tick(tick, 0) for tick in (0.005, 0.01, 0.02, 0.05)}

    assert min(ticks | silent) >= MIN_TICK_SECONDS
    assert max(ticks) <= MAX_TICK_SECONDS == 0.020
    assert max(silent) <= IDLE_TICK_SECONDS == 0.050


@pytest.mark.parametrize("messages", [0, 1, 100, RECEIVE_LIMIT])
def test_what_only_a_trace_waits_for_is_drained_every_50_ms(messages: int) -> None:
    """The stated error of the observed time where there is no plane and no view: 50 ms at any rate."""
    ticks = {next_tick(tick, messages, awaited=False) for tick in (0.005, 0.02, 0.05)}

    assert ticks == {RECORD_TICK_SECONDS} == {0.050}


@pytest.mark.parametrize(
    ("since_asked", "since_message", "drained"),
    [
        (0.0, 10.0, False),
        (QUIET_SECONDS, 10.0, True),  # nothing came for long: a tenth of a second is enough
        (QUIET_SECONDS, 0.01, False),
        (0.3, QUIET_SECONDS, True),
        (LIVE_SECONDS, 0.0, True),  # the engine goes on: it is left
        (LIVE_SECONDS - 0.01, 0.0, False),
    ],
)
def test_when_a_stop_is_done(since_asked: float, since_message: float, drained: bool) -> None:
    """An empty stream is done when it has been quiet, or when the engine never will be."""
    now = 1000.0

    assert is_drained(now, now - since_asked, now - since_message) is drained


def test_waits_grow_and_start_again() -> None:
    """Waits double up to a limit; a success starts them again."""
    backoff = Backoff()
    waits = [backoff.next() for _ in range(8)]
    backoff.reset()

    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.next() == 0.1


def test_pace_without_a_trace() -> None:
    """Without a trace nothing holds the receiving back."""
    assert Pace().limit(0.0, None, 8) == RECEIVE_LIMIT


def test_pace_shares_the_room() -> None:
    """A backlog is taken as the trace has room, shared among the streams."""
    assert Pace().limit(0.0, 4 * RECEIVE_LIMIT, 4) == RECEIVE_LIMIT
    assert Pace().limit(0.0, 1000, 4) == 250
    assert Pace().limit(0.0, 0, 1) == 0


def test_pace_gives_up_on_a_stuck_trace() -> None:
    """RELAY-03: A trace without room holds a backlog back for a second and no longer, and not again before
    it moves: neither when the backlog is gone nor for the next one.
    """
    pace = Pace()
    limits = [pace.limit(now, 0, 1) for now in (10.0, 10.5, 10.0 + HOLD_SECONDS, 60.0)]
    pace.emptied()

    assert limits == [0, 0, RECEIVE_LIMIT, RECEIVE_LIMIT]
    assert pace.limit(61.0, 0, 1) == RECEIVE_LIMIT


def test_pace_holds_back_again_once_the_trace_moved() -> None:
    """RELAY-03: A trace that has room again is spared the next backlog, though it was given up before."""
    pace = Pace()
    for now in (10.0, 10.0 + HOLD_SECONDS):
        pace.limit(now, 0, 1)
    pace.emptied()
    pace.limit(12.0, RECEIVE_LIMIT, 1)
    pace.emptied()

    assert pace.limit(13.0, 300, 1) == 300


def test_pace_forgets_a_backlog_that_went_through() -> None:
    """A backlog that the trace took in time leaves the whole second to the next one."""
    pace = Pace()
    pace.limit(10.0, 500, 1)
    pace.emptied()

    assert [pace.limit(now, 500, 1) for now in (10.9, 11.8)] == [500, 500]


def test_pace_with_more_streams_than_the_queue_has_room_for() -> None:
    """Nine streams can never all take a whole turn out of 8192 places, and are not given up for that."""
    pace = Pace()
    limits = set()
    for tick in range(1000):
        limits.add(pace.limit(tick * MIN_TICK_SECONDS, 8192, 9))
        pace.emptied()

    assert limits == {8192 // 9}


@pytest.mark.parametrize("room", [0, 100, RECEIVE_LIMIT - 1])
def test_a_stuck_trace_holds_back_for_one_second_in_all(room: int) -> None:
    """RELAY-03: Over a minute of busy and quiet ticks, a trace that never has more room costs one second."""
    pace, held = Pace(), 0
    for tick in range(int(60 / MIN_TICK_SECONDS)):
        limit = pace.limit(tick * MIN_TICK_SECONDS, room, 1)
        held += limit < RECEIVE_LIMIT
        waiting = RECEIVE_LIMIT if tick % 10 == 0 else 0  # sometimes more than what may be taken
        if limit == RECEIVE_LIMIT and not waiting:
            pace.emptied()

    assert held * MIN_TICK_SECONDS == pytest.approx(HOLD_SECONDS, abs=MIN_TICK_SECONDS)


def test_without_a_plane_a_trace_that_moves_is_not_given_up() -> None:
    """RELAY-03: Where no plane waits, a backlog of a minute's work is taken as the trace has room."""
    pace = Pace(has_plane=False)

    assert {pace.limit(now / 10, 400, 2) for now in range(600)} == {200}


def test_without_a_plane_a_stuck_trace_is_given_up() -> None:
    """Where no plane waits either, a trace that takes nothing for a second drops and counts as before."""
    pace = Pace(has_plane=False)
    limits = [pace.limit(now, room, 2) for now, room in ((10.0, 400), (10.1, 1), (10.9, 1), (11.1, 1))]

    assert limits == [200, 0, 0, RECEIVE_LIMIT]
