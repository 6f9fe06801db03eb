"""A trace in numbers."""

from __future__ import annotations

import pytest

from forwardpass.analyze.kinds import PassKind
from forwardpass.analyze.summary import KindSummary, Summary, ratio, summarize
from forwardpass.testing.traces import decode_pass, mixed_pass, prefill_pass, trace_record
from forwardpass.wire.schema import QueuedRequestMetrics, ScheduledRequestMetrics

NOTHING = ScheduledRequestMetrics()


def kind(summary: Summary, name: PassKind) -> KindSummary:
    """Return the numbers of one kind."""
    return next(each for each in summary.kinds if each.kind is name)


def test_nothing_sums_up_to_nothing() -> None:
    """An empty trace has a summary, without times and rates."""
    summary = summarize([])

    assert (summary.rows, summary.passes, summary.kinds, summary.streams) == (0, 0, (), ())
    assert (summary.first_observed_unix_ms, summary.tokens_per_second, summary.queue.mean_requests) == (
        None,
        None,
        0.0,
    )


def test_step_times_are_by_kind_and_exact() -> None:
    """Each kind has its own quantiles, by nearest rank."""
    rows = [trace_record(n, decode_pass(), wall_time=(n + 1) / 1000) for n in range(100)]
    rows += [trace_record(100 + n, prefill_pass(), wall_time=0.5) for n in range(3)]
    rows += [trace_record(103, mixed_pass(), wall_time=0.75)]
    summary = summarize(rows)

    decode = kind(summary, PassKind.DECODE)
    assert (decode.passes, decode.p50_seconds, decode.p90_seconds, decode.p99_seconds) == (
        100,
        0.05,
        0.09,
        0.099,
    )
    assert (decode.max_seconds, decode.mean_seconds) == (0.1, pytest.approx(0.0505))
    assert [each.kind for each in summary.kinds] == [PassKind.PREFILL, PassKind.DECODE, PassKind.MIXED]
    assert kind(summary, PassKind.PREFILL).p50_seconds == 0.5


def test_heartbeats_are_no_passes() -> None:
    """Heartbeats count as rows, and neither in step times nor in the mean queue."""
    rows = [trace_record(0, decode_pass(), queued=QueuedRequestMetrics(4, 400))]
    rows += [trace_record(n, NOTHING, wall_time=0.0, queued=QueuedRequestMetrics(9, 900)) for n in (1, 2, 3)]
    summary = summarize(rows)

    assert (summary.rows, summary.passes, summary.heartbeats) == (4, 1, 3)
    assert [each.kind for each in summary.kinds] == [PassKind.DECODE]
    assert (summary.queue.mean_requests, summary.queue.max_requests, summary.queue.max_prefill_tokens) == (
        4.0,
        9,
        900,
    )


def test_untimed_passes_count_but_not_in_the_times() -> None:
    """A pass with requests and ``wall_time`` 0 is a pass whose time is not known."""
    summary = summarize([trace_record(0, wall_time=0.0), trace_record(1, wall_time=0.02)])
    decode = kind(summary, PassKind.DECODE)

    assert (decode.passes, decode.untimed, decode.p50_seconds) == (2, 1, 0.02)
    only = kind(summarize([trace_record(0, wall_time=0.0)]), PassKind.DECODE)
    assert (only.p99_seconds, only.mean_seconds, only.max_seconds) == (None, None, None)


def test_tokens_and_rates() -> None:
    """Tokens a second are prompt tokens plus one per decoding request, over elapsed and over busy time."""
    rows = [
        trace_record(0, prefill_pass(2, 300, cached=100), wall_time=0.5, observed_at_unix_ms=10_000),
        trace_record(1, decode_pass(20), wall_time=0.3, observed_at_unix_ms=10_500),
        trace_record(2, decode_pass(80), wall_time=0.2, observed_at_unix_ms=11_500),
    ]
    summary = summarize(rows)

    assert (summary.prefill_tokens, summary.cached_tokens, summary.decode_tokens) == (300, 100, 100)
    assert summary.elapsed_seconds == 2.0
    assert (summary.tokens_per_second, summary.tokens_per_busy_second) == (200.0, 400.0)


def test_busy_fraction_is_of_each_rank() -> None:
    """Time in passes over the time from the first pass's start to the last row."""
    rows = [
        trace_record(n, dp_rank=rank, wall_time=0.1 * (rank + 1), observed_at_unix_ms=5_000 + 400 * n)
        for n in range(5)
        for rank in (0, 1)
    ]
    first, second = summarize(rows).streams

    assert (first.dp_rank, first.busy_seconds, first.elapsed_seconds) == (
        0,
        pytest.approx(0.5),
        pytest.approx(1.7),
    )
    assert first.busy_fraction == pytest.approx(0.5 / 1.7)
    assert second.busy_fraction == pytest.approx(1.0 / 1.8)


def test_streams_are_kept_apart() -> None:
    """Two writers, workers or ranks never make a gap or a restart between them."""
    rows = [trace_record(n, worker_id="a", dp_rank=0) for n in range(3)]
    rows += [trace_record(n, worker_id="a", dp_rank=1) for n in range(3)]
    rows += [trace_record(n, worker_id="b", dp_rank=0) for n in range(3)]
    rows += [trace_record(n, worker_id="a", dp_rank=0, producer_id="9") for n in range(3)]
    summary = summarize(rows)

    assert (summary.missing, summary.restarts, summary.duplicates) == (0, 0, 0)
    assert [(s.producer_id, s.worker_id, s.dp_rank, s.rows) for s in summary.streams] == [
        ("4192", "a", 0, 3),
        ("4192", "a", 1, 3),
        ("4192", "b", 0, 3),
        ("9", "a", 0, 3),
    ]
    assert [(p.producer_id, p.rows, p.ranks) for p in summary.producers] == [("4192", 9, 3), ("9", 3, 1)]
    assert sum(p.row_bytes for p in summary.producers) == sum(len(row.line) + 1 for row in rows)


def test_gaps_of_all_streams_add_up() -> None:
    """The trace's gaps are the sum of its streams' gaps."""
    rows = [trace_record(n, dp_rank=0) for n in (0, 5, 6)] + [
        trace_record(n, dp_rank=1) for n in (0, 2, 1, 1)
    ]
    summary = summarize(rows)

    assert (summary.missing, summary.gaps, summary.restarts, summary.duplicates) == (5, 2, 1, 1)


def test_empty_passes_of_a_single_rank_are_idle() -> None:
    """A worker with one rank has no other to keep step with."""
    summary = summarize([trace_record(0, NOTHING, wall_time=0.01), trace_record(1)])

    assert [(each.kind, each.passes) for each in summary.kinds] == [(PassKind.DECODE, 1), (PassKind.IDLE, 1)]


def test_empty_passes_of_many_ranks_are_dummies() -> None:
    """That rank 0 ran along is known once another rank of its worker was seen, even if later."""
    rows = [trace_record(0, NOTHING, wall_time=0.01, dp_rank=0), trace_record(0, wall_time=0.01, dp_rank=1)]
    rows += [trace_record(0, NOTHING, wall_time=0.03, worker_id="alone", producer_id="8")]
    summary = summarize(rows)

    assert kind(summary, PassKind.DP_DUMMY).p50_seconds == 0.01
    assert kind(summary, PassKind.IDLE).p50_seconds == 0.03


def test_sampled_trace_gives_no_rates() -> None:
    """What a sample cannot say is not said: rates, busy time, loss."""
    rows = [trace_record(n, capture_mode="sampled") for n in (0, 10, 20)]
    summary = summarize(rows)

    assert (summary.sampled, summary.sampled_out, summary.missing) == (True, 18, 0)
    assert summary.tokens_per_second is None
    assert summary.streams[0].busy_fraction is None


def test_clock_that_jumps_back_leaves_time_positive() -> None:
    """Observed times span from the earliest to the latest, whatever their order."""
    rows = [trace_record(n, observed_at_unix_ms=ms) for n, ms in enumerate((5_000, 2_000, 9_000))]
    summary = summarize(rows)

    assert (summary.first_observed_unix_ms, summary.last_observed_unix_ms) == (2_000, 9_000)
    assert summary.elapsed_seconds == pytest.approx(7.02)


def test_absurd_numbers_do_not_fail() -> None:
    """Counts beyond any float, negative ones and negative times end in a summary."""
    rows = [
        trace_record(0, ScheduledRequestMetrics(1, 2**63, num_decode_requests=-5), wall_time=-1.0),
        trace_record(1, prefill_pass(tokens=10), wall_time=1e308),
    ]
    summary = summarize(rows)

    assert summary.prefill_tokens == 2**63 + 10
    assert ratio(10**400, 2.0) is None
    assert ratio(1, 0) is None
