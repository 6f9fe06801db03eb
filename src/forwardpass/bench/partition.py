"""Knows how a total is split over the requests of a batch. Every split conserves the total exactly.

A split is kept as runs, ``((value, count), …)`` in the order of the requests: an even split has two of them
at most, however large the batch, so that judging a point costs the same for 2 requests and for 2,000.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

__all__ = ["Runs", "Unsplittable", "even_pairs", "even_split", "joined", "runs_of", "uneven_split", "values"]

Runs = tuple[tuple[int, int], ...]
"""Values with their counts, in the order of the requests."""


class Unsplittable(ValueError):
    """A total that cannot be split as asked; its text says why. A value for the planner, never for a user."""


def even_split(total: int, parts: int, *, unit: int = 1, minimum: int = 1) -> Runs:
    """Return ``total`` in whole units over ``parts`` requests, what is left over to the first of them.

    Raises :class:`Unsplittable` if it is no multiple of ``unit`` or leaves a part below ``minimum`` units.
    """
    units = _units(total, parts, unit)
    each, left_over = divmod(units, parts)
    if each < minimum:
        raise Unsplittable(f"{total} over {parts} requests leaves less than {minimum * unit} for one")
    return _runs(((each + 1) * unit, left_over), (each * unit, parts - left_over))


def even_pairs(first: int, second: int, parts: int, unit: int) -> list[tuple[int, int, int]] | None:
    """Return what :func:`joined` gives of two even splits, ``second`` in whole units or 0, but faster.

    ``None`` if one of them cannot be split; a grid asks this for every candidate.
    """
    a, more_a = divmod(first, parts)
    units, left_over = divmod(second, unit)
    b, more_b = divmod(units, parts)
    if a < 1 or left_over or (second and b < 1) or second < 0:
        return None
    b *= unit
    if more_a < more_b:
        runs = [(a + 1, b + unit, more_a), (a, b + unit, more_b - more_a), (a, b, parts - more_b)]
    else:
        runs = [(a + 1, b + unit, more_b), (a + 1, b, more_a - more_b), (a, b, parts - more_a)]
    return [run for run in runs if run[2]]


def uneven_split(
    total: int, parts: int, *, high_count: int, fraction: float, unit: int = 1, minimum: int = 1
) -> Runs:
    """Return ``total`` with the first ``high_count`` parts above the mean by ``fraction``, the rest even.

    Raises :class:`Unsplittable` as :func:`even_split` does, and if not ``0 < high_count < parts``.
    """
    if not 0 < high_count < parts:
        raise Unsplittable(f"{high_count} of {parts} requests cannot be above the others")
    units = _units(total, parts, unit)
    high = max(minimum, round(units / parts * (1 + fraction)))
    rest = units - high_count * high
    low = even_split(rest * unit, parts - high_count, unit=unit, minimum=minimum) if rest >= 0 else None
    if low is None:
        raise Unsplittable(f"{high_count} parts of {high * unit} are more than {total}")
    return _runs((high * unit, high_count), *low)


def runs_of(sequence: Sequence[int]) -> Runs:
    """Return the runs of explicit values."""
    return tuple((value, sum(1 for _ in group)) for value, group in groupby(sequence))


def values(runs: Runs) -> Iterator[int]:
    """Yield one value for each request."""
    for value, count in runs:
        for _ in range(count):
            yield value


def joined(first: Runs, second: Runs) -> Iterator[tuple[int, int, int]]:
    """Yield ``(value of first, value of second, count)`` for requests that are alike in both."""
    other = iter(second)
    b, left_b = next(other, (0, 0))
    for a, left_a in first:
        while left_a:
            if not left_b:
                b, left_b = next(other)
            count = min(left_a, left_b)
            yield a, b, count
            left_a, left_b = left_a - count, left_b - count


def _units(total: int, parts: int, unit: int) -> int:
    units, left_over = divmod(total, unit)
    if parts < 1 or left_over or units < 0:
        raise Unsplittable(f"{total} is no multiple of {unit} that {parts} requests could share")
    return units


def _runs(*runs: tuple[int, int]) -> Runs:
    return tuple(run for run in runs if run[1])
