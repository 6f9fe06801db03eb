"""Laws of derived quantities, for messages that need not be sensible."""

from __future__ import annotations

import math
from collections import Counter

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from forwardpass.analyze.derived import Derived, derive, ratio
from forwardpass.analyze.iterations import IterationExport, message_fault
from forwardpass.analyze.planner import (
    MAX_SAMPLES,
    EngineRole,
    PlannerSample,
    SampleStore,
    planner_sample,
)
from forwardpass.analyze.ranks import group_ranks, ranks_of_workers, spread_of
from forwardpass.testing.strategies import metrics as valid_metrics
from forwardpass.testing.traces import trace_record
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

wild = st.integers(-(2**63), 2**64 - 1) | st.sampled_from([0, 1, -1])
floats = st.floats() | st.sampled_from([0.0, 5e-324])
wild_metrics = st.builds(
    ForwardPassMetrics,
    dp_rank=wild,
    counter_id=wild,
    wall_time=floats,
    scheduled_requests=st.builds(ScheduledRequestMetrics, wild, wild, floats, wild, wild, wild, floats),
    queued_requests=st.builds(QueuedRequestMetrics, wild, wild, floats, wild, wild, floats),
)
"""Whatever the tolerant decoder lets through: negative counts, no numbers, endless times."""


@given(wild_metrics | valid_metrics, st.booleans())
def test_whatever_a_message_holds(message: ForwardPassMetrics, data_parallel: bool) -> None:
    """DERIVE-02: Nothing raises, every number is finite and every quotient at least 0; JSON reads back."""
    derived = derive(message, data_parallel=data_parallel)
    quotients = [value for value in msgspec.structs.astuple(derived) if isinstance(value, float)]

    assert all(math.isfinite(value) and value >= 0 for value in quotients)
    assert derived.cached_fraction is None or derived.cached_fraction >= 0
    assert msgspec.json.decode(msgspec.json.encode(derived), type=Derived).kind is derived.kind
    for role in EngineRole:
        sample = planner_sample(message, role)
        assert sample is None or 0 < sample.wall_time < math.inf
    message_fault(message)


@given(valid_metrics)
def test_of_a_valid_message(message: ForwardPassMetrics) -> None:
    """DERIVE-03, DERIVE-04, DERIVE-05: Fractions are in 0 … 1, and a mean times its count is the sum."""
    derived, scheduled = derive(message), message.scheduled_requests

    assert derived.cached_fraction is None or 0 <= derived.cached_fraction <= 1
    assert (derived.mean_chunk_tokens is None) == (scheduled.num_prefill_requests == 0)
    assert (derived.std_decode_context_tokens is None) == (scheduled.num_decode_requests == 0)
    if derived.mean_decode_context_tokens is not None:
        total = derived.mean_decode_context_tokens * scheduled.num_decode_requests
        assert math.isclose(total, scheduled.sum_decode_kv_tokens, rel_tol=1e-9)
    assert derived.total_context_tokens >= derived.tokens - scheduled.num_decode_requests


@given(st.floats(), st.floats())
def test_a_ratio_is_a_number_or_nothing(amount: float, base: float) -> None:
    """DERIVE-02: A ratio is a finite number of at least 0, or None."""
    value = ratio(amount, base)

    assert value is None or (math.isfinite(value) and value >= 0)


# --- ranks -----------------------------------------------------------------------------------------

START = 1_796_042_065_000
moments = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), max_size=40)


@given(moments, st.integers(0, 120))
@example([(0, 1), (0, 1), (1, 0), (1, 1), (1, 1)], 1)
def test_groups_of_ranks(rows: list[tuple[int, int]], max_skew_ms: int) -> None:
    """DERIVE-08: Every row of the lowest rank is in one group and no row in two; every member is within the
    limit of the anchor's row and is no nearer to the anchor's row before or after; none is passed over for a
    row of its rank that is further away, unless another row of the anchor is as near to it.
    """
    records = [
        trace_record(number, dp_rank=rank, observed_at_unix_ms=START + at)
        for number, (rank, at) in enumerate(sorted(rows, key=lambda one: one[1]))
    ]
    ranks = ranks_of_workers(records)
    groups = list(group_ranks(records, ranks=ranks, max_skew_ms=max_skew_ms))
    used = Counter(row.metrics.counter_id for group in groups for row in group.rows)
    lowest = min((record.metrics.dp_rank for record in records), default=0)
    anchors = [record for record in records if record.metrics.dp_rank == lowest]
    free = [record for record in records if record.metrics.counter_id not in used]

    assert set(used.values()) <= {1}
    assert [group.rows[0] for group in groups] == anchors
    for group in groups:
        anchor, *others = group.rows
        times = [row.observed_at_unix_ms for row in group.rows]
        assert group.skew_ms == max(times) - min(times)
        present = {row.metrics.dp_rank for row in group.rows}
        assert present | set(group.missing) == {rank for known in ranks.values() for rank in known}
        for row in others:
            apart = abs(row.observed_at_unix_ms - anchor.observed_at_unix_ms)
            assert apart <= max_skew_ms
            assert apart == min(abs(row.observed_at_unix_ms - a.observed_at_unix_ms) for a in anchors)
            for left in free:
                if left.metrics.dp_rank == row.metrics.dp_rank:
                    elsewhere = [
                        abs(left.observed_at_unix_ms - other.observed_at_unix_ms)
                        for other in anchors
                        if other is not anchor
                    ]
                    own = abs(left.observed_at_unix_ms - anchor.observed_at_unix_ms)
                    assert own >= apart or min(elsewhere, default=own + 1) <= own
        spread = spread_of(group)
        assert spread.tokens_imbalance is None or 1 <= spread.tokens_imbalance <= len(group.rows)


@given(moments)
def test_exported_and_left_out_add_up(rows: list[tuple[int, int]]) -> None:
    """DERIVE-12: Every iteration has all ranks of the worker, and each group is exported or counted."""
    records = [
        trace_record(number, dp_rank=rank, observed_at_unix_ms=START + at)
        for number, (rank, at) in enumerate(sorted(rows, key=lambda one: one[1]))
    ]
    ranks = ranks_of_workers(records)
    export = IterationExport(ranks)
    iterations = list(export.iterations(records))
    groups = len(list(group_ranks(records, ranks=ranks)))
    expected = sorted({record.metrics.dp_rank for record in records})

    assert all([message["dp_rank"] for message in each] == expected for each in iterations)
    assert export.exported + sum(export.left_out.values()) == groups


# --- samples ---------------------------------------------------------------------------------------


@given(
    st.integers(1, 2).flatmap(
        lambda axes: st.lists(st.tuples(*[st.integers(0, 2**63 - 1)] * axes), max_size=150)
    )
)
def test_samples_are_bounded_and_the_newest_load_is_among_them(features: list[tuple[int, ...]]) -> None:
    """DERIVE-11: At most 64 are kept, each as it came and in that order; nothing goes before it has to."""
    samples = [PlannerSample(each, float(at + 1)) for at, each in enumerate(features)]
    kept = SampleStore(samples).samples

    assert len(kept) == min(len(samples), MAX_SAMPLES)
    assert set(kept) <= set(samples)
    assert [sample.wall_time for sample in kept] == sorted(sample.wall_time for sample in kept)
