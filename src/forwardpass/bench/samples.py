"""Knows what is kept of one forward pass that was measured, and how several passes become one value.

The original passes are kept whole beside the value that they give: nothing is averaged away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from forwardpass.bench.evidence import NO_DISPATCH, Basis, Dispatch, Estimate, Method
from forwardpass.wire.schema import ForwardPassMetrics

__all__ = [
    "GIANT_MEDIAN_OF",
    "STEADY_SAMPLE",
    "Reduced",
    "Sample",
    "reduce_samples",
]

STEADY_SAMPLE = "kvwarm_steady_sample"
"""Marks a retained pass that is a steady decode step."""
GIANT_MEDIAN_OF = "kvwarm_giant_median_of"
"""Says of how many steady steps a retained pass is the median."""


class Sample(Struct, frozen=True):
    """One pass of a point. Times are monotonic seconds of this process alone."""

    forward_index: int
    """Counts every pass with tokens while the benchmark is active, from 0."""
    basis: Basis
    start: float | None
    """``None`` where the start was not seen; the pass's ``wall_time`` is 0 then."""
    end: float
    metrics: ForwardPassMetrics
    """With the point's id as ``counter_id`` and ``end - start`` as ``wall_time``."""
    dispatch: Dispatch = NO_DISPATCH
    """Which graph it really ran as, in the engine's own words."""


class Reduced(Struct, frozen=True):
    """What is retained of a point's samples."""

    estimate: Estimate
    """How it follows from which of them."""
    retained: tuple[dict[str, Any], ...]
    """Passes as mappings; exactly one where the point was measured as it should be."""


def reduce_samples(samples: Sequence[Sample], expected: int) -> Reduced:
    """Return what ``samples`` come to, of which ``expected`` were asked for (the admission step included).

    Several steady steps give the first of them with their upper median as its time (of two the larger);
    a decode its last step; anything else every pass as it is.
    """
    count = len(samples)
    if expected > 2 and count >= 2:
        walls = sorted(sample.metrics.wall_time for sample in samples[1:])
        marks = {"wall_time": walls[len(walls) // 2], GIANT_MEDIAN_OF: len(walls), STEADY_SAMPLE: True}
        retained = _mapping(samples[1]) | marks
        return Reduced(Estimate(Method.ADJACENT_UPPER_MEDIAN, tuple(range(1, count))), (retained,))
    if expected > 1 and count >= expected:
        last = _mapping(samples[-1]) | {STEADY_SAMPLE: True}
        return Reduced(Estimate(Method.LAST_STEP, (count - 1,)), (last,))
    return Reduced(Estimate(Method.SINGLE_STEP, tuple(range(count))), tuple(map(_mapping, samples)))


def _mapping(sample: Sample) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(sample.metrics)
    return fields
