"""Knows which counters of a stream no recorder has, when several recorded it, at once or in turn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from forwardpass.analyze.coverage import Coverage, Hole, HoleKind, Stretch
from forwardpass.analyze.spans import carve
from forwardpass.trace.ledger import CounterRange

__all__ = ["Missing", "missing_of"]

OVERLAP_MS = 10_000
"""How far two recorders may differ about when they saw the same message."""
SKEW_MS = 1_000
"""How far the clocks of two recorders that began together may differ, so that their rows seem to go back."""


class Missing(Struct, frozen=True):
    """A hole that no recorder fills."""

    hole: Hole
    before: int
    """Which of the given coverages holds the row before it."""
    after: int
    """And after it; another one if a recorder took over."""


def missing_of(coverages: Sequence[Coverage]) -> list[Missing]:
    """Return what is missing of one stream, in the order of time.

    ``coverages`` are of the same stream, one for each recorder. A counter that any of them has at about that
    time is not missing.
    """
    found: list[Missing] = []
    stretches = [_ByCounter(coverage.stretches) for coverage in coverages] if len(coverages) > 1 else []
    for at, coverage in enumerate(coverages):
        others = [other for number, other in enumerate(stretches) if number != at]
        for hole in coverage.holes:
            found.extend(Missing(left, at, at) for left in _left(hole, others))
    found.extend(_handed_over(coverages))
    return sorted(_once(found), key=lambda each: (each.hole.after_ms, each.hole.first))


class _ByCounter:
    """Stretches that can be asked for some counters without looking at all of them."""

    __slots__ = ("_begins", "_reach", "_stretches")

    def __init__(self, stretches: Iterable[Stretch]) -> None:
        self._stretches = sorted(stretches)
        self._begins = [each.first for each in self._stretches]
        self._reach = list(accumulate((each.last for each in self._stretches), max))

    def touching(self, first: int, last: int) -> Iterator[Stretch]:
        """Yield the stretches that share a counter with ``first`` to ``last``."""
        at = bisect_right(self._begins, last) - 1
        while at >= 0 and self._reach[at] >= first:  # none further left reaches as far
            if self._stretches[at].last >= first:
                yield self._stretches[at]
            at -= 1


def _left(hole: Hole, others: Iterable[_ByCounter]) -> list[Hole]:
    """Return what is left of ``hole`` without what the others have."""
    if hole.kind is not HoleKind.JUMP:
        return [hole]
    parts = [CounterRange(hole.first, hole.last)]
    for other in others:
        for stretch in other.touching(hole.first, hole.last):
            if stretch.to_ms < hole.before_ms - OVERLAP_MS or stretch.from_ms > hole.after_ms + OVERLAP_MS:
                continue
            _, parts = carve(parts, stretch.first, stretch.last)
    return [replace(hole, first=part.first, last=part.last) for part in parts]


# --- where one recorder took over from another --------------------------------------------------------


class _Piece(NamedTuple):
    """What one recorder has of one life of the publisher, holes included."""

    at: int
    first: int
    last: int
    from_ms: int
    to_ms: int


def _pieces(coverages: Sequence[Coverage]) -> list[_Piece]:
    pieces: list[_Piece] = []
    for at, coverage in enumerate(coverages):
        if coverage.sampled:
            continue
        last: _Piece | None = None
        for stretch in coverage.stretches:
            if last is not None and stretch.first > last.last:
                last = pieces[-1] = last._replace(last=stretch.last, to_ms=max(last.to_ms, stretch.to_ms))
            else:
                last = _Piece(at, *stretch)
                pieces.append(last)
    return sorted(pieces, key=lambda piece: (piece.from_ms, piece.first))


def _handed_over(coverages: Sequence[Coverage]) -> Iterator[Missing]:
    """Yield the holes between the recorders' pieces."""
    lives: list[list[_Piece]] = []
    for piece in _pieces(coverages):
        if lives and _is_same_life(lives[-1], piece):
            lives[-1].append(piece)
            continue
        if lives and piece.at not in {each.at for each in lives[-1]}:  # else it has the restart itself
            before = max(lives[-1], key=lambda each: each.to_ms)
            hole = Hole(HoleKind.RESTART, 0, piece.first - 1, before.to_ms, piece.from_ms)
            yield Missing(hole, before.at, piece.at)
        lives.append([piece])
    for life in lives:
        yield from _uncovered(life)


def _is_same_life(life: Sequence[_Piece], piece: _Piece) -> bool:
    if any(each.at == piece.at for each in life):
        return False  # a recorder's pieces are divided by a restart that it saw
    first, last = min(each.first for each in life), max(each.last for each in life)
    if piece.first > last:
        return True
    if max(each.to_ms for each in life) < piece.from_ms - OVERLAP_MS:
        return False  # what it has was reached before, and long ago
    began_together = piece.from_ms - max(each.from_ms for each in life) <= SKEW_MS
    return piece.last >= first - 1 or began_together


def _uncovered(life: Sequence[_Piece]) -> Iterator[Missing]:
    reached: _Piece | None = None
    for piece in sorted(life, key=lambda each: (each.first, each.last)):
        if reached is not None and piece.first > reached.last + 1:
            hole = Hole(HoleKind.JUMP, reached.last + 1, piece.first - 1, reached.to_ms, piece.from_ms)
            yield Missing(hole, reached.at, piece.at)
        if reached is None or piece.last > reached.last:
            reached = piece


def _once(found: Iterable[Missing]) -> list[Missing]:
    """Return each hole once: two recorders that both lost a message tell of the same hole."""
    kept: list[Missing] = []
    for each in sorted(found, key=lambda one: (one.hole.first, one.hole.after_ms, -one.hole.count)):
        if not kept or not _is_told(each, kept[-1]):
            kept.append(each)
    return kept


def _is_told(one: Missing, other: Missing) -> bool:
    """Say whether ``other``, of another recorder, is the same restart, or a hole that contains this one."""
    if one.hole.kind is not other.hole.kind or (one.before, one.after) == (other.before, other.after):
        return False
    if abs(one.hole.after_ms - other.hole.after_ms) > OVERLAP_MS:
        return False
    is_restart = one.hole.kind is HoleKind.RESTART
    return is_restart or other.hole.first <= one.hole.first <= one.hole.last <= other.hole.last
