"""What a planner learns from."""

from __future__ import annotations

import math

import pytest

from forwardpass.analyze.planner import (
    BUCKETS,
    MAX_SAMPLES,
    MIN_SAMPLES,
    EngineRole,
    PlannerSample,
    SampleStore,
    features_of,
    planner_sample,
)
from forwardpass.wire.schema import ForwardPassMetrics, ScheduledRequestMetrics

PASS = ForwardPassMetrics(
    wall_time=0.25, scheduled_requests=ScheduledRequestMetrics(2, 300, 1.0, 50, 20, 8_000, 1.0)
)


@pytest.mark.parametrize(
    ("role", "features"),
    [
        (EngineRole.PREFILL, (300,)),
        (EngineRole.DECODE, (20, 8_000)),
        (EngineRole.AGGREGATED, (300, 8_000)),
    ],
)
def test_features(role: EngineRole, features: tuple[int, ...]) -> None:
    """DERIVE-10: Each role has its features, and the time is the target."""
    assert planner_sample(PASS, role) == PlannerSample(features, 0.25)
    assert features_of(PASS, role) == features


@pytest.mark.parametrize("wall_time", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_sample(wall_time: float) -> None:
    """DERIVE-10: A heartbeat, and a time that is none, is no sample."""
    assert planner_sample(ForwardPassMetrics(wall_time=wall_time), EngineRole.DECODE) is None


def store_of(*features: tuple[int, ...]) -> SampleStore:
    """Return a store of samples in this order; the time of each is its number."""
    return SampleStore(PlannerSample(each, float(at + 1)) for at, each in enumerate(features))


def test_a_few_are_kept_as_they_come() -> None:
    """DERIVE-11: Up to 64 samples nothing goes, and from 5 on they can be fitted."""
    store = store_of(*[(7,)] * MAX_SAMPLES)

    assert len(store.samples) == MAX_SAMPLES == 64
    assert [store_of(*[(1,)] * count).ready for count in (0, MIN_SAMPLES - 1, MIN_SAMPLES)] == [
        False,
        False,
        True,
    ]


def test_the_oldest_of_the_fullest_bucket_goes() -> None:
    """DERIVE-11: One rare load among common ones stays, however old, and the oldest common one goes."""
    store = store_of((1000,), *[(10,)] * 80)

    assert len(store.samples) == MAX_SAMPLES
    assert store.samples[0] == PlannerSample((1000,), 1.0)
    assert [sample.wall_time for sample in store.samples[1:]] == [float(at) for at in range(19, 82)]


def test_buckets_along_one_feature() -> None:
    """DERIVE-11: Along one feature there are 16 buckets of one width."""
    spread = [(100 * place,) for place in range(BUCKETS)]
    store = store_of(*spread * 4, (0,))
    kept = [sample.features for sample in store.samples]

    assert {place: kept.count(place) for place in spread} == dict.fromkeys(spread, 4)
    assert store.samples[0].features == (100,)  # the oldest (0,) went for the newest


def test_buckets_along_two_features() -> None:
    """DERIVE-11: Along two there are 4 by 4: what differs within one of them shares its fate."""
    corners = [(x, y) for x in (0, 100, 200, 300) for y in (0, 1000, 2000, 3000)]
    store = store_of(*corners * 4, *[(20, 200)] * 30)
    kept = [sample.features for sample in store.samples]

    assert len(kept) == MAX_SAMPLES
    assert all(kept.count(corner) == 4 for corner in corners if corner != (0, 0))
    assert kept.count((0, 0)) + kept.count((20, 200)) == 4
