"""Knows which points two grids have in common, and what became of the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from forwardpass.analyze.benchmark.run import BenchRun, MeasuredPoint
from forwardpass.artifact.blocks import PointRecord
from forwardpass.bench.digest import point_key

__all__ = ["GridDifference", "Lone", "Moved", "Pair", "Retold", "grid_difference", "paired"]

_RUN_TIME = ("prefill_real_seed", "prefill_fake_prefix", "kvwarm_real_kv", "kvwarm_fake_fallback")
"""Reasons that say how a point was prepared, and not why it is in the grid."""


class Pair(Struct, frozen=True):
    """One coordinate that both runs measured."""

    a: MeasuredPoint
    b: MeasuredPoint


class Lone(Struct, frozen=True):
    """A point that one run alone measured."""

    point: PointRecord
    why: str | None
    """The reason if the other run skipped it; ``None`` if the other one does not have it."""


class Moved(Struct, frozen=True):
    """A point with another id: another history before it."""

    point: PointRecord
    """As A has it."""
    a: int
    b: int


class Retold(Struct, frozen=True):
    """A point of which the two say something else: the graph that was expected, or why it is measured."""

    a: PointRecord
    b: PointRecord


class GridDifference(Struct, frozen=True, kw_only=True):
    """How two grids differ, as far as the files tell: points that a run never came to stand in no file."""

    same_digest: bool | None
    """Whether the planned grids were the same; ``None`` where a file has no digest."""
    common: int
    only_a: tuple[Lone, ...]
    only_b: tuple[Lone, ...]
    moved: tuple[Moved, ...]
    retold: tuple[Retold, ...]

    @property
    def is_empty(self) -> bool:
        """Whether no difference was found."""
        return self.same_digest is not False and not (self.only_a or self.only_b or self.moved or self.retold)


def paired(a: BenchRun, b: BenchRun) -> list[Pair]:
    """Return the points that both measured, in the order of A. A coordinate that stands in a grid several
    times is paired in the order in which it does.
    """
    others = {point.place: point for point in b.points}
    return [Pair(point, others[point.place]) for point in a.points if point.place in others]


def grid_difference(a: BenchRun, b: BenchRun) -> GridDifference:
    """Return how the measured grids of two runs differ."""
    pairs = paired(a, b)
    digests = [run.head.get("grid_digest") for run in (a, b)]
    told = all(isinstance(digest, str) for digest in digests)
    moved = [pair for pair in pairs if pair.a.point.benchmark_id != pair.b.point.benchmark_id]
    return GridDifference(
        same_digest=digests[0] == digests[1] if told else None,
        common=len(pairs),
        only_a=tuple(_lone(a, b)),
        only_b=tuple(_lone(b, a)),
        moved=tuple(
            Moved(pair.a.point, pair.a.point.benchmark_id, pair.b.point.benchmark_id) for pair in moved
        ),
        retold=tuple(
            Retold(pair.a.point, pair.b.point)
            for pair in pairs
            if _story(pair.a.point) != _story(pair.b.point)
        ),
    )


def _lone(one: BenchRun, other: BenchRun) -> Iterable[Lone]:
    there = {point.place for point in other.points}
    skipped = {point_key(msgspec.structs.asdict(row.point)): row.reason for row in other.skipped}
    for point in one.points:
        if point.place not in there:
            yield Lone(point.point, skipped.get(point.key))


def _story(point: PointRecord) -> tuple[Any, ...]:
    reasons = tuple(reason for reason in point.sample_reasons if reason not in _RUN_TIME)
    return (point.expected_cudagraph_mode, point.expected_capture_size, point.padding_tokens, reasons)
