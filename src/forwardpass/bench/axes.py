"""Knows which values an axis of the grid takes: around captured graphs, geometric beyond, and not too many.

The rules are the reference's (self-benchmark, grid generation), so that both measure the same points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["graph_axis", "graph_cap", "ladder", "largest", "powers_of_two", "uniform_cap"]


def powers_of_two(first: int, last: int) -> list[int]:
    """Return the powers of two in ``first`` … ``last``, ascending."""
    found, power = [], 1
    while power <= last:
        if power >= first:
            found.append(power)
        power *= 2
    return found


def ladder(least: int, most: int) -> list[int]:
    """Return ``least``, the powers of two from there to ``most``, and ``most``; ascending and unique."""
    return sorted({least, *powers_of_two(least, most), most})


def graph_axis(captures: Sequence[int], limit: int) -> list[int]:
    """Return the sizes to measure up to ``limit``, ascending and unique; none where the limit is below 1.

    Every captured size and the one after it, where padding begins; beyond the largest its doublings; the
    limit itself. Without captures the powers of two.
    """
    if limit < 1:
        return []
    if not captures:
        return sorted({*powers_of_two(1, limit), limit})
    axis = {limit}
    for size in captures:
        if size <= limit:
            axis.add(size)
            if size < limit:
                axis.add(size + 1)
    largest = max(captures)
    if largest <= limit:
        size = largest * 2
        while size < limit:
            axis.add(size)
            size *= 2
    return sorted(axis)


def uniform_cap(values: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` (two or more) of ``values``, evenly by position, both ends among them."""
    if len(values) <= most:
        return list(values)
    steps = most - 1
    last = len(values) - 1
    return [values[(step * last + steps // 2) // steps] for step in range(most)]


def graph_cap(values: Sequence[int], captures: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` of ``values``; a short tail beyond the captures stays whole.

    The tail is short if it is a fifth of all values at most: what runs without a graph differs most there.
    """
    if len(values) <= most or not captures:
        return uniform_cap(values, most)
    largest = max(captures)
    covered = [value for value in values if value <= largest]
    tail = [value for value in values if value > largest]
    room = most - len(tail)
    if not tail or not covered or room < 1 or 5 * len(tail) > len(values):
        return uniform_cap(values, most)
    return (covered[:1] if room == 1 else uniform_cap(covered, room)) + tail


def largest(least: int, most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from ``least`` to ``most`` that fits, as all before do, or ``least - 1``."""
    if most < least or not fits(least):
        return least - 1
    low, high = least, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
