"""Knows how spans of counters are taken out of each other."""

from __future__ import annotations

from collections.abc import Iterable

from forwardpass.trace.ledger import CounterRange

__all__ = ["carve", "length"]


def length(spans: Iterable[CounterRange]) -> int:
    """Return how many counters there are in all."""
    return sum(span.last - span.first + 1 for span in spans)


def carve(
    spans: Iterable[CounterRange], first: int, last: int
) -> tuple[list[CounterRange], list[CounterRange]]:
    """Return what ``first`` to ``last`` takes of ``spans``, and what is left of them; nothing empty."""
    taken: list[CounterRange] = []
    left: list[CounterRange] = []
    for span in spans:
        begin, end = max(span.first, first), min(span.last, last)
        if begin > end:
            left.append(span)
            continue
        taken.append(CounterRange(begin, end))
        around = CounterRange(span.first, begin - 1), CounterRange(end + 1, span.last)
        left += [part for part in around if part.first <= part.last]
    return taken, left
