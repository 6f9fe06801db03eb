"""Knows the evidence that a retained pass carries: original passes, prompts, and what went before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from forwardpass.bench.digest import point_key, record
from forwardpass.bench.evidence import (
    BenchmarkSample,
    Measurement,
    PointPreparation,
    Prompts,
    SampleTiming,
    bench_fpm,
)
from forwardpass.bench.points import Point
from forwardpass.bench.samples import Reduced, Sample
from forwardpass.bench.sync.messages import RankResult

__all__ = ["FIELD", "rekeyed", "with_measurement"]

FIELD = "benchmark_measurement"


def with_measurement(
    point: Point,
    reduced: Reduced,
    samples: Sequence[Sample],
    *,
    dp_rank: int,
    expected: int,
    prompts: Prompts,
    preparation: PointPreparation,
) -> tuple[dict[str, Any], ...]:
    """Return what was retained, with its evidence; only a single pass can carry any."""
    if len(reduced.retained) != 1:
        return reduced.retained
    measurement = Measurement(
        schema_version=1,
        point_key=point_key(record(point)),
        dp_rank=dp_rank,
        prompts=prompts,
        preparation=preparation,
        expected_internal_samples=expected,
        raw_fpms=tuple(
            bench_fpm(sample.metrics, sample=_sample(index, sample)) for index, sample in enumerate(samples)
        ),
        estimate=reduced.estimate,
    )
    return ({**reduced.retained[0], FIELD: msgspec.to_builtins(measurement)},)


def rekeyed(ranks: Sequence[RankResult], point: Point) -> tuple[RankResult, ...]:
    """Return the passes of all ranks with the key of ``point`` in their evidence: it is recorded at another
    coordinate than it was planned at.
    """
    key = point_key(record(point))
    found = []
    for rank in ranks:
        passes = tuple(
            {**each, FIELD: {**each[FIELD], "point_key": key}} if FIELD in each else each
            for each in rank.fpms
        )
        found.append(RankResult(rank.dp_rank, passes))
    return tuple(found)


def _sample(index: int, sample: Sample) -> BenchmarkSample:
    return BenchmarkSample(
        sample_index=index,
        forward_index=sample.forward_index,
        timing=SampleTiming(sample.basis, sample.start, sample.end),
        cudagraph=sample.dispatch,
    )
