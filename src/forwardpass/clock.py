"""Knows what time it is, and lets tests say so instead.

``monotonic()`` is for intervals inside one process; ``unix_ms()`` is only for stamps. Monotonic times
of two processes are never compared.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """The two clocks that the product reads."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; never goes back."""
        ...

    def unix_ms(self) -> int:
        """Return milliseconds since 1970-01-01T00:00:00Z; may jump."""
        ...


class SystemClock:
    """The operating system's clocks."""

    __slots__ = ()

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def unix_ms() -> int:
        """Return milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000
