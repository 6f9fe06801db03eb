"""How often a repeated fault is said."""

from __future__ import annotations

import logging

import pytest

from forwardpass.quiet import MAX_KINDS, QuietLog
from forwardpass.testing.clock import ManualClock

logger = logging.getLogger("forwardpass.test_quiet")


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock the test moves."""
    return ManualClock()


@pytest.fixture
def quiet(clock: ManualClock) -> QuietLog:
    """Return a log with the default interval of a minute."""
    return QuietLog(logger, clock)


def test_the_first_is_said_at_once_and_the_rest_as_one_total(
    quiet: QuietLog, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """One line at first, none within the minute, then one that says how many there were."""
    for _ in range(11):
        quiet.warning("lost", "lost one")
    clock.advance(59.9)
    quiet.warning("lost", "lost one")
    silent = len(caplog.records)
    clock.advance(0.1)
    quiet.warning("lost", "lost another")

    assert silent == 1
    assert [record.getMessage() for record in caplog.records] == [
        "lost one",
        "lost another (and 11 more like it since the last line); 13 in all",
    ]
    assert quiet.total("lost") == 13


def test_a_rare_fault_is_said_every_time(
    quiet: QuietLog, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Faults more than a minute apart all get their line, without a count of unsaid ones."""
    quiet.warning("rare", "rare")
    clock.advance(61)
    quiet.warning("rare", "rare")

    assert [record.getMessage() for record in caplog.records] == ["rare", "rare; 2 in all"]


def test_kinds_are_told_apart(quiet: QuietLog, caplog: pytest.LogCaptureFixture) -> None:
    """One kind's silence does not silence another."""
    quiet.warning("a", "a")
    quiet.warning("b", "b")
    quiet.warning("a", "a")

    assert [record.getMessage() for record in caplog.records] == ["a", "b"]
    assert (quiet.total("a"), quiet.total("b"), quiet.total("c")) == (2, 1, 0)


def test_endless_kinds_grow_neither_memory_nor_log(quiet: QuietLog, caplog: pytest.LogCaptureFixture) -> None:
    """Beyond the limit new kinds share one line, and known kinds stay known."""
    for number in range(MAX_KINDS + 10_000):
        quiet.warning(("peer", number), "garbage")
    quiet.warning(("peer", 0), "garbage")

    assert len(caplog.records) == MAX_KINDS + 1
    assert quiet.total(("peer", 0)) == 2


def test_an_error_may_carry_its_traceback(quiet: QuietLog, caplog: pytest.LogCaptureFixture) -> None:
    """error() logs at ERROR and includes the current traceback on request."""
    try:
        raise ValueError("inner")
    except ValueError:
        quiet.error("bug", "a bug", exc_info=True)

    assert caplog.records[0].levelno == logging.ERROR
    assert "ValueError: inner" in caplog.text


def test_percent_signs_are_text(quiet: QuietLog, caplog: pytest.LogCaptureFixture) -> None:
    """A message is never used as a format string."""
    quiet.warning("percent", "100 % of %s lost")

    assert caplog.records[0].getMessage() == "100 % of %s lost"
