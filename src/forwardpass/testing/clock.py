"""Knows the time a test says it is."""

from __future__ import annotations

__all__ = ["ManualClock"]


class ManualClock:
    """A :class:`~forwardpass.clock.Clock` that moves only when told to."""

    __slots__ = ("_monotonic", "_unix_ms")

    def __init__(self, monotonic: float = 1000.0, unix_ms: int = 1_700_000_000_000) -> None:
        self._monotonic = monotonic
        self._unix_ms = unix_ms

    def monotonic(self) -> float:
        """Return the seconds set by the test."""
        return self._monotonic

    def unix_ms(self) -> int:
        """Return the Unix milliseconds set by the test."""
        return self._unix_ms

    def advance(self, seconds: float) -> None:
        """Let both clocks move on by ``seconds`` (>= 0: a monotonic clock never goes back)."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back by {-seconds} s; see step_unix")
        self._monotonic += seconds
        self._unix_ms += round(seconds * 1000)

    def step_unix(self, seconds: float) -> None:
        """Let only the Unix clock jump, as an operator or NTP would."""
        self._unix_ms += round(seconds * 1000)
