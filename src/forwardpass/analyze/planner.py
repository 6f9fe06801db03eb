"""Knows what Dynamo's planner learns from: the features of a pass, its time, and which samples are kept.

The planner predicts ``wall_time`` from a few sums with a linear model for each role of an engine. Heartbeats
take no time and are no samples. It never uses variances, counters or tokens that were read for prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from forwardpass.wire.schema import ForwardPassMetrics

__all__ = [
    "BUCKETS",
    "FEATURE_NAMES",
    "MAX_SAMPLES",
    "MIN_SAMPLES",
    "EngineRole",
    "PlannerSample",
    "SampleStore",
    "features_of",
    "planner_sample",
]

MAX_SAMPLES = 64
MIN_SAMPLES = 5
"""Fewer are not fitted."""
BUCKETS = 16
"""In all: 16 along one feature, 4 by 4 for two."""


class EngineRole(StrEnum):
    """What an engine does in its deployment."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGGREGATED = "aggregated"


FEATURE_NAMES: dict[EngineRole, tuple[str, ...]] = {
    EngineRole.PREFILL: ("sum_prefill_tokens",),
    EngineRole.DECODE: ("num_decode_requests", "sum_decode_kv_tokens"),
    EngineRole.AGGREGATED: ("sum_prefill_tokens", "sum_decode_kv_tokens"),
}
"""Fields of ``scheduled_requests``, in the order of the features."""


class PlannerSample(Struct, frozen=True):
    """One pass as a sample of a regression."""

    features: tuple[int, ...]
    """As :data:`FEATURE_NAMES` says: tokens, or requests."""
    wall_time: float
    """Seconds; the target."""


def features_of(metrics: ForwardPassMetrics, role: EngineRole) -> tuple[int, ...]:
    """Return the features of a message, heartbeat or not."""
    scheduled = metrics.scheduled_requests
    return tuple(getattr(scheduled, name) for name in FEATURE_NAMES[role])


def planner_sample(metrics: ForwardPassMetrics, role: EngineRole) -> PlannerSample | None:
    """Return the sample of a pass; ``None`` for a heartbeat and a time that is no finite number above 0."""
    if not 0 < metrics.wall_time < math.inf:
        return None
    return PlannerSample(features_of(metrics, role), metrics.wall_time)


class SampleStore:
    """At most 64 samples that cover the range of the features: rare loads outlive common ones.

    When there is one too many, the oldest of the fullest bucket goes; of several that are as full, the bucket
    with the oldest sample. Buckets are equally wide between the smallest and the largest value that is kept.
    """

    __slots__ = ("_samples",)

    def __init__(self, samples: Iterable[PlannerSample] = ()) -> None:
        self._samples: list[PlannerSample] = []  # the oldest first
        for sample in samples:
            self.add(sample)

    @property
    def samples(self) -> tuple[PlannerSample, ...]:
        """What is kept, the oldest first."""
        return tuple(self._samples)

    @property
    def ready(self) -> bool:
        """Whether there are enough to fit."""
        return len(self._samples) >= MIN_SAMPLES

    def add(self, sample: PlannerSample) -> None:
        """Keep ``sample``; all samples have equally many features."""
        self._samples.append(sample)
        if len(self._samples) > MAX_SAMPLES:
            self._retire()

    def _retire(self) -> None:
        buckets: dict[tuple[int, ...], list[int]] = {}  # in the order of their oldest sample
        ranges = [(min(values), max(values)) for values in zip(*self._features(), strict=True)]
        per_axis = BUCKETS if len(ranges) == 1 else math.isqrt(BUCKETS)
        for at, features in enumerate(self._features()):
            place = tuple(
                _bucket(value, low, high, per_axis)
                for value, (low, high) in zip(features, ranges, strict=True)
            )
            buckets.setdefault(place, []).append(at)
        fullest = max(buckets.values(), key=len)  # the first of equals
        del self._samples[fullest[0]]

    def _features(self) -> list[tuple[int, ...]]:
        return [sample.features for sample in self._samples]


def _bucket(value: int, low: int, high: int, buckets: int) -> int:
    if high == low:
        return 0
    return min(buckets - 1, (value - low) * buckets // (high - low))
