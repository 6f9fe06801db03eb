"""Knows how far apart the samples of one point lie."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

__all__ = ["Spread", "spread"]


class Spread(Struct, frozen=True):
    """Some times, in seconds."""

    count: int
    least: float
    median: float
    """The upper one of the two in the middle, as in the files."""
    most: float
    mean: float
    cv: float | None
    """Standard deviation (of a sample, divided by *n* - 1) by mean; ``None`` where nothing can be said: fewer
    than two times, or all of them 0."""


def spread(times: Sequence[float]) -> Spread | None:
    """Return the spread of finite ``times``, ``None`` if there are none."""
    if not times:
        return None
    ordered = sorted(times)
    count = len(ordered)
    mean = math.fsum(ordered) / count
    cv = None
    if count > 1 and mean > 0:
        cv = math.sqrt(math.fsum((time - mean) ** 2 for time in ordered) / (count - 1)) / mean
    return Spread(count, ordered[0], ordered[count // 2], ordered[-1], mean, cv)
