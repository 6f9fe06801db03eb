"""Knows what a few samples allow to be said of a ratio: exact intervals by ranks, no distribution assumed.

With *n* and *m* samples of the same distribution but for a factor, each order of them is equally likely. The
interval between the *k*-th smallest and *k*-th largest of all *n*·*m* ratios then holds the factor with a
probability that is counted, not estimated; the widest one (*k* = 1) reaches 1 - 2 / C(*n* + *m*, *n*), and
nothing reaches more: 0 for one sample on each side, 67 % for two, 90 % for three, 97 % for four.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb, exp, fsum, lgamma, log

from msgspec import Struct

from forwardpass.bench.axes import uniform_cap

__all__ = ["LEVEL", "MOST_SAMPLES", "Interval", "by_chance", "median_interval", "ratio_interval"]

LEVEL = 0.95
MOST_SAMPLES = 40
"""Of each side; of more, so many are taken evenly by position, which no value has a say in."""


class Interval(Struct, frozen=True):
    """Between which two values something lies."""

    low: float
    high: float
    level: float
    """With which probability at least; 0 to 1."""

    def reaches(self, level: float) -> bool:
        """Say whether it is as sure as was asked for."""
        return self.level >= level


def ratio_interval(before: Sequence[float], after: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Return where the factor from ``before`` to ``after`` lies: the narrowest interval that is so sure.

    Where no interval is as sure, the widest one with what it reaches. ``None`` where nothing can be said: one
    sample on each side, none, or a time of 0 among them.
    """
    one, other = _thinned(before), _thinned(after)
    if len(one) + len(other) < 3 or not one or not other or min(*one, *other) <= 0:
        return None
    ratios = sorted(late / early for early in one for late in other)
    place, reached = _place(len(one), len(other), level)
    return Interval(ratios[place], ratios[-1 - place], reached)


def median_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """Return where the median of what ``values`` were drawn from lies; ``None`` for fewer than two."""
    count = len(values)
    if count < 2:
        return None
    ordered = sorted(values)
    term = outside = 1  # of 2**count: in how many cases that few values lie below the median
    place = 0
    while 2 * (place + 1) < count:
        term = term * (count - place) // (place + 1)
        if 2 * (outside + term) / 2**count > 1 - level:
            break
        outside += term
        place += 1
    return Interval(ordered[place], ordered[-1 - place], 1 - 2 * outside / 2**count)


def by_chance(decided: int, tests: int, share: float) -> float:
    """Return how probable it is that so many of ``tests`` intervals, or more, miss the truth.

    Each misses it with the probability ``share``, and none knows of another.
    """
    if decided <= 0:
        return 1.0
    every = lgamma(tests + 1)
    return min(
        1.0,
        fsum(
            exp(
                every
                - lgamma(at + 1)
                - lgamma(tests - at + 1)
                + at * log(share)
                + (tests - at) * log(1 - share)
            )
            for at in range(decided, tests + 1)
        ),
    )


def _thinned(values: Sequence[float]) -> list[float]:
    return [values[at] for at in uniform_cap(range(len(values)), MOST_SAMPLES)]


@lru_cache(maxsize=256)
def _place(one: int, other: int, level: float) -> tuple[int, float]:
    """Return how many ratios may be left out at either end, and what the interval then reaches."""
    total = comb(one + other, one)
    counts = _arrangements(one, other)
    outside, place = counts[0], 0
    while 2 * (place + 1) < one * other and 1 - 2 * (outside + counts[place + 1]) / total >= level:
        place += 1
        outside += counts[place]
    return place, max(0.0, 1 - 2 * outside / total)


@lru_cache(maxsize=256)
def _arrangements(one: int, other: int) -> tuple[int, ...]:
    """Return, for each number of pairs in which the second is smaller, in how many orders that comes about.

    The coefficients of the Gaussian binomial: the product of (1 - q^(other + i)) / (1 - q^i), i = 1 … one.
    """
    size = one * other
    counts = [1] + [0] * size
    for step in range(1, one + 1):
        for at in range(size, other + step - 1, -1):
            counts[at] -= counts[at - other - step]
        for at in range(step, size + 1):
            counts[at] += counts[at - step]
    return tuple(counts)
