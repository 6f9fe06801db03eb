"""The clock that tests move."""

from __future__ import annotations

import pytest

from forwardpass.testing.clock import ManualClock


def test_both_clocks_advance_together() -> None:
    """advance() moves monotonic seconds and Unix milliseconds by the same time."""
    clock = ManualClock(monotonic=10.0, unix_ms=5_000)
    clock.advance(1.5)

    assert (clock.monotonic(), clock.unix_ms()) == (11.5, 6_500)


def test_only_the_unix_clock_may_jump() -> None:
    """step_unix() moves the Unix clock, either way, and leaves the monotonic one."""
    clock = ManualClock(monotonic=10.0, unix_ms=5_000)
    clock.step_unix(-2)

    assert (clock.monotonic(), clock.unix_ms()) == (10.0, 3_000)


def test_a_monotonic_clock_never_goes_back() -> None:
    """advance() by a negative time is refused."""
    with pytest.raises(ValueError):
        ManualClock().advance(-0.1)
