"""What one message says besides what stands in it."""

from __future__ import annotations

import math

import pytest

from forwardpass import derive
from forwardpass.analyze.derived import Derived, age_seconds, busy_fraction, cached_fraction, ratio
from forwardpass.analyze.kinds import PassKind
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics


def test_every_quantity_of_a_mixed_pass() -> None:
    """DERIVE-03, DERIVE-04, DERIVE-05, DERIVE-07: Each quantity is its formula, worked out by hand."""
    metrics = ForwardPassMetrics(
        wall_time=0.5,
        scheduled_requests=ScheduledRequestMetrics(2, 300, 6.25, 100, 20, 8_000, 9.0),
        queued_requests=QueuedRequestMetrics(4, 1_000, 4.0, 2, 600, 16.0),
    )

    assert derive(metrics) == Derived(
        kind=PassKind.MIXED,
        tokens=320,
        tokens_per_second=640.0,
        total_context_tokens=8_400,
        cached_fraction=0.25,
        mean_chunk_tokens=150.0,
        mean_prompt_tokens=200.0,
        std_prompt_tokens=2.5,
        mean_decode_context_tokens=400.0,
        std_decode_context_tokens=3.0,
        queue_depth=6,
        queued_tokens=1_600,
        mean_queued_prompt_tokens=250.0,
        std_queued_prompt_tokens=2.0,
        mean_queued_context_tokens=300.0,
        std_queued_context_tokens=4.0,
    )


def test_a_heartbeat_says_nothing_and_says_so() -> None:
    """DERIVE-02: Of no requests and no time there is no mean, deviation, fraction or rate: None, not 0."""
    derived = derive(ForwardPassMetrics())
    numbers = {name: getattr(derived, name) for name in Derived.__struct_fields__}

    assert derived.kind is PassKind.HEARTBEAT
    assert {name for name, value in numbers.items() if value == 0} == {
        "tokens", "total_context_tokens", "queue_depth", "queued_tokens",
    }  # fmt: skip
    assert {name for name, value in numbers.items() if value is None} == {
        *numbers,
    } - {"kind", "tokens", "total_context_tokens", "queue_depth", "queued_tokens"}


@pytest.mark.parametrize(
    ("scheduled", "wall_time", "data_parallel", "kind"),
    [
        (ScheduledRequestMetrics(1, 5), 0.1, False, PassKind.PREFILL),
        (ScheduledRequestMetrics(1, 0, 0.0, 64), 0.1, False, PassKind.PREFILL),  # fully cached
        (ScheduledRequestMetrics(num_decode_requests=1), 0.1, False, PassKind.DECODE),
        (ScheduledRequestMetrics(1, 5, 0.0, 0, 1), 0.1, False, PassKind.MIXED),
        (ScheduledRequestMetrics(), 0.1, False, PassKind.IDLE),
        (ScheduledRequestMetrics(), 0.1, True, PassKind.DP_DUMMY),
        (ScheduledRequestMetrics(), 0.0, True, PassKind.HEARTBEAT),
    ],
)
def test_kinds(
    scheduled: ScheduledRequestMetrics, wall_time: float, data_parallel: bool, kind: PassKind
) -> None:
    """DERIVE-01: The kind follows from what was scheduled, the time, and whether there are several ranks."""
    metrics = ForwardPassMetrics(wall_time=wall_time, scheduled_requests=scheduled)

    assert derive(metrics, data_parallel=data_parallel).kind is kind


@pytest.mark.parametrize("wall_time", [math.nan, math.inf, -1.0, 5e-324])
def test_a_time_that_is_none(wall_time: float) -> None:
    """DERIVE-02: A time that is no number, endless, negative or too short for any rate gives no rate."""
    metrics = ForwardPassMetrics(wall_time=wall_time, scheduled_requests=ScheduledRequestMetrics(1, 10**6))

    assert derive(metrics).tokens_per_second in (None, 0.0 if wall_time == math.inf else None)


@pytest.mark.parametrize("variance", [math.nan, math.inf, -1.0])
def test_a_variance_that_is_none(variance: float) -> None:
    """DERIVE-02: A variance that is no number, endless or negative gives no deviation."""
    metrics = ForwardPassMetrics(scheduled_requests=ScheduledRequestMetrics(2, 10, variance))

    assert derive(metrics).std_prompt_tokens is None


@pytest.mark.parametrize(
    ("amount", "base", "expected"),
    [
        (1, 4, 0.25),
        (0, 4, 0.0),
        (0, 0, None),
        (1, 0, None),
        (1, -1, None),
        (-1, 4, None),
        (math.nan, 1, None),
        (1, math.nan, None),
        (math.inf, 1, None),
        (10**400, 1, None),
        (10**400, 10**399, 10.0),
        (1, 10**400, 0.0),
    ],
)
def test_ratio(amount: float, base: float, expected: float | None) -> None:
    """DERIVE-02: A ratio is a finite number of at least 0, or nothing."""
    assert ratio(amount, base) == expected


def test_fractions_and_ages() -> None:
    """DERIVE-05, DERIVE-06, DERIVE-07: Cached and busy fractions, and the age of a message."""
    assert (cached_fraction(30, 70), cached_fraction(0, 0)) == (0.3, None)
    assert (busy_fraction(1.5, 2.0), busy_fraction(0.0, 0.0)) == (0.75, None)
    assert (age_seconds(1_000, 3_500), age_seconds(2_000, 1_000)) == (2.5, None)
