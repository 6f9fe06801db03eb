"""Knows what a point is: a batch to measure, what it is expected to run as, and why it is measured."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from forwardpass.bench.limits import GraphMode
from forwardpass.bench.partition import Runs, Unsplittable, even_split, runs_of, uneven_split

__all__ = ["EAGER_WARMUP", "EXPLICIT", "Expectation", "Partition", "Phase", "Point", "expect_graph"]

EXPLICIT = "explicit"
"""Reason of a point that a points file names."""
EAGER_WARMUP = "eager_warmup"
"""The one reason of a replica that runs a shape for the first time and is thrown away."""


class Phase(StrEnum):
    """What a point measures."""

    PREFILL = "prefill"
    DECODE = "decode"


class Partition(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """How unequal the requests of a prefill point are."""

    axis: Literal["new", "kv", "both"]
    """Which tokens are spread unevenly: those to compute, those to read, or both."""
    high_count: int
    """How many requests, the first ones, are above the mean."""
    fraction: float
    """By how much of the mean they are, in (0, 1)."""


class Point(Struct, frozen=True, gc=False):
    """One batch to measure. Totals are of one pass on one rank. The fields are those of the artifact.

    It cannot be part of a cycle; a grid has so many that the collector would look at little else.
    """

    point_type: Phase
    benchmark_id: int
    """1 … in the order of execution; replicas come after all others."""
    total_prefill_tokens: int
    """Tokens to compute; 0 for decode."""
    total_kv_read_tokens: int
    """Tokens whose KV is read."""
    batch_size: int
    expected_cudagraph_mode: GraphMode = GraphMode.NONE
    expected_capture_size: int | None = None
    """Size of the smallest graph that holds the pass; ``None`` where there is none."""
    padding_tokens: int | None = None
    """What is missing to that size."""
    sample_reasons: tuple[str, ...] = ()
    partition: Partition | None = None
    rows: tuple[tuple[int, int], ...] | None = None
    """``(tokens to compute, tokens to read)`` of each request, where a points file says so."""

    @property
    def shape_driver(self) -> int:
        """Return the number that decides which graph runs: tokens of a prefill, requests of a decode."""
        return self.total_prefill_tokens if self.point_type is Phase.PREFILL else self.batch_size

    @property
    def is_replica(self) -> bool:
        """Whether it only runs a shape for the first time."""
        return self.sample_reasons[:1] == (EAGER_WARMUP,)

    @property
    def is_imbalanced(self) -> bool:
        """Whether its requests differ on purpose."""
        return self.partition is not None or len(set(self.rows or ())) > 1

    def new_tokens(self) -> Runs:
        """Return the tokens that each request of a prefill point computes; raises :class:`Unsplittable`."""
        if self.rows is not None:
            return self._column(0)
        if self.partition is not None and self.partition.axis != "kv":
            return uneven_split(
                self.total_prefill_tokens,
                self.batch_size,
                high_count=self.partition.high_count,
                fraction=self.partition.fraction,
            )
        return even_split(self.total_prefill_tokens, self.batch_size)

    def kv_tokens(self, unit: int) -> Runs:
        """Return the tokens that each request of a prefill point reads, in whole units of ``unit`` tokens.

        Raises :class:`Unsplittable`, also for explicit rows that are no multiples.
        """
        if self.rows is not None:
            if any(read % unit for _, read in self.rows):
                raise Unsplittable(f"tokens to read that are no multiple of {unit}")
            return self._column(1)
        if not self.total_kv_read_tokens:
            return ((0, self.batch_size),)
        if self.partition is not None and self.partition.axis != "new":
            return uneven_split(
                self.total_kv_read_tokens,
                self.batch_size,
                high_count=self.partition.high_count,
                fraction=self.partition.fraction,
                unit=unit,
            )
        return even_split(self.total_kv_read_tokens, self.batch_size, unit=unit)

    def contexts(self) -> Runs:
        """Return the context length of each request of a decode point; raises :class:`Unsplittable`."""
        return even_split(self.total_kv_read_tokens, self.batch_size)

    def _column(self, index: int) -> Runs:
        rows = self.rows or ()
        if len(rows) != self.batch_size:
            raise Unsplittable(f"{len(rows)} rows for {self.batch_size} requests")
        return runs_of([row[index] for row in rows])


class Expectation(Struct, frozen=True):
    """Which graph a pass is expected to use, and why its size is worth measuring."""

    mode: GraphMode
    capture_size: int | None
    padding_tokens: int | None
    reasons: tuple[str, ...]


def expect_graph(driver: int, captures: Sequence[int], mode: GraphMode, limit: int) -> Expectation:
    """Return what is expected of a pass of ``driver`` tokens (requests, for decode).

    ``captures`` are the sizes of the phase, ascending; ``limit`` is the end of the axis.
    """
    place = bisect_left(captures, driver)
    capture = captures[place] if place < len(captures) else None
    reasons = []
    if capture == driver:
        reasons.append("capture")
    if driver > 1 and place and captures[place - 1] == driver - 1:
        reasons.append("post_capture")
    if not captures:
        reasons.append("cudagraph_disabled")
        reasons += ["geometric_axis"] if driver != limit else []
    elif capture is None:
        reasons.append("eager_tail")
        reasons += ["geometric_tail"] if driver != limit else []
    if driver == limit:
        reasons.append("engine_limit")
    return Expectation(
        mode=mode if capture is not None else GraphMode.NONE,
        capture_size=capture,
        padding_tokens=None if capture is None else capture - driver,
        reasons=tuple(reasons),
    )
