"""Knows count, sum and variance of integers, exactly.

Count, sum and sum of squares are Python integers, so nothing is rounded until the one division at the
end. That is exact, can be undone (``remove``) and, because the loops run in C, cheaper than a running
floating-point mean. The result agrees with Welford's method as far as that is accurate.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

__all__ = ["Tally", "sum_and_variance"]


def sum_and_variance(values: Sequence[int]) -> tuple[int, float]:
    """Return the sum and the population variance of ``values`` (0.0 for fewer than two).

    The variance is the correctly rounded quotient of two exact integers.
    """
    tally = Tally.of(values)
    return tally.total, tally.variance


class Tally:
    """Count, sum and variance of a multiset of integers that values enter and leave."""

    __slots__ = ("n", "squares", "total")

    def __init__(self, n: int = 0, total: int = 0, squares: int = 0) -> None:
        self.n = n
        self.total = total
        self.squares = squares

    @classmethod
    def of(cls, values: Sequence[int]) -> Tally:
        """Return the tally of ``values``."""
        return cls(len(values), sum(values), sum(map(mul, values, values)))

    def add(self, value: int) -> None:
        """Let ``value`` enter."""
        self.n += 1
        self.total += value
        self.squares += value * value

    def remove(self, value: int) -> None:
        """Let ``value`` leave. The caller guarantees that it had entered."""
        self.n -= 1
        self.total -= value
        self.squares -= value * value

    def merge(self, other: Tally) -> None:
        """Let everything in ``other`` enter."""
        self.n += other.n
        self.total += other.total
        self.squares += other.squares

    @property
    def variance(self) -> float:
        """Population variance; 0.0 for fewer than two values."""
        n, total = self.n, self.total
        # n*squares - total**2 is the exact n^2 * variance, never negative for true integers.
        return (n * self.squares - total * total) / (n * n) if n > 1 else 0.0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tally):
            return NotImplemented
        return (self.n, self.total, self.squares) == (other.n, other.total, other.squares)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Tally(n={self.n}, total={self.total}, squares={self.squares})"
