"""Which rows of a worker's ranks belong together."""

from __future__ import annotations

import math

from forwardpass.analyze.ranks import (
    SILENT_MS,
    RankGroup,
    WorkerName,
    group_ranks,
    ranks_of_workers,
    spread_of,
    worker_of,
)
from forwardpass.testing.traces import decode_pass, prefill_pass, trace_record
from forwardpass.trace.record import TraceRecord
from forwardpass.wire.schema import QueuedRequestMetrics

START = 1_796_042_065_000


def row(rank: int, at: int, worker: str = "4192") -> TraceRecord:
    """Return a row of one rank, so many milliseconds after the start; its counter tells nothing."""
    return trace_record(at % 7, dp_rank=rank, observed_at_unix_ms=START + at, worker_id=worker)


def times(groups: list[RankGroup]) -> list[dict[int, int]]:
    """Return each group as rank -> milliseconds after the start."""
    return [{r.metrics.dp_rank: r.observed_at_unix_ms - START for r in group.rows} for group in groups]


def grouped(*rows: tuple[int, int], max_skew_ms: int = 1000) -> list[RankGroup]:
    """Return the groups of rows (rank, milliseconds), in the order of time."""
    records = [row(rank, at) for rank, at in sorted(rows, key=lambda one: one[1])]
    ranks = ranks_of_workers(records)
    return list(group_ranks(records, ranks=ranks, max_skew_ms=max_skew_ms))


def test_ranks_in_lockstep() -> None:
    """DERIVE-08: Rows at nearly the same time are one group, with the skew between them."""
    groups = grouped((0, 0), (1, 2), (0, 20), (1, 19), (0, 41), (1, 40))

    assert times(groups) == [{0: 0, 1: 2}, {0: 20, 1: 19}, {0: 41, 1: 40}]
    assert [group.skew_ms for group in groups] == [2, 1, 1]
    assert {group.missing for group in groups} == {()}


def test_the_nearest_row_is_taken() -> None:
    """DERIVE-08: A row goes to the nearer of two, and the nearer of two rows is taken."""
    assert times(grouped((0, 0), (1, 90), (0, 100))) == [{0: 0}, {0: 100, 1: 90}]
    assert times(grouped((0, 0), (1, 10), (0, 100))) == [{0: 0, 1: 10}, {0: 100}]
    assert times(grouped((0, 100), (1, 70), (1, 120), (1, 150))) == [{0: 100, 1: 120}]
    assert times(grouped((1, 95), (0, 100), (1, 120))) == [{0: 100, 1: 95}]


def test_a_slower_rank_is_not_used_twice() -> None:
    """DERIVE-08: A rank with fewer passes is missing from some groups, and in none twice."""
    groups = grouped((0, 0), (0, 20), (0, 40), (0, 60), (1, 1), (1, 41))

    assert times(groups) == [{0: 0, 1: 1}, {0: 20}, {0: 40, 1: 41}, {0: 60}]
    assert [group.missing for group in groups] == [(), (1,), (), (1,)]


def test_the_limit_of_the_skew() -> None:
    """DERIVE-08: A row that is further away than the limit joins no group; at the limit it does."""
    assert times(grouped((0, 0), (1, 100), max_skew_ms=100)) == [{0: 0, 1: 100}]
    assert times(grouped((0, 0), (1, 101), max_skew_ms=100)) == [{0: 0}]


def test_a_missing_lowest_rank() -> None:
    """DERIVE-08: While the lowest rank is silent for long another is the anchor, until it speaks again."""
    late = SILENT_MS + 1000
    groups = grouped(
        (0, 0), (1, 1), (2, 2), (1, late), (2, late + 3), (1, late + 20), (2, late + 23), (0, late + 40),
        (1, late + 41),
    )  # fmt: skip

    assert times(groups) == [
        {0: 0, 1: 1, 2: 2},
        {1: late, 2: late + 3},
        {1: late + 20, 2: late + 23},
        {0: late + 40, 1: late + 41},
    ]
    assert [group.missing for group in groups] == [(), (0,), (0,), (2,)]


def test_workers_do_not_mix() -> None:
    """DERIVE-08: Ranks of different workers are not grouped; without an id the producer tells them apart."""
    records = [row(0, 0, "a"), row(1, 1, "b"), row(1, 2, "a"), row(0, 3, "b")]
    records += [
        trace_record(0, worker_id="", producer_id=producer, dp_rank=0, observed_at_unix_ms=START)
        for producer in ("1", "2")
    ]
    groups = list(group_ranks(records))

    assert sorted((g.worker.worker_id, g.worker.producer_id, len(g.rows)) for g in groups) == [
        ("", "1", 1), ("", "2", 1), ("a", "", 2), ("b", "", 1), ("b", "", 1),
    ]  # fmt: skip
    assert worker_of(records[0]) == WorkerName("dynamo", "backend", "a", "")


def test_ranks_that_are_known_are_missed_from_the_start() -> None:
    """DERIVE-08: With the ranks of a worker given, one that comes later is missing from the first groups."""
    records = [row(0, 0), row(0, 20), row(1, 21)]
    known = list(group_ranks(records, ranks=ranks_of_workers(records)))
    unknown = list(group_ranks(records))

    assert [group.missing for group in known] == [(1,), ()]
    assert [group.missing for group in unknown] == [(), ()]


def test_spread() -> None:
    """DERIVE-09: Imbalances are largest by mean, times are compared where they passed; no load is None."""
    waiting = QueuedRequestMetrics(num_prefill_requests=3)
    busy = trace_record(0, prefill_pass(1, 300), dp_rank=0, wall_time=0.5, queued=waiting)
    light = trace_record(0, decode_pass(100, 200), dp_rank=1, wall_time=0.25)
    dummy = trace_record(0, decode_pass(0, 0), dp_rank=2, wall_time=0.0)
    (group,) = group_ranks([busy, light, dummy])
    spread = spread_of(group)
    (alone,) = group_ranks([dummy])

    assert (spread.ranks, spread.max_wall_time, spread.wall_time_spread) == (3, 0.5, 0.25)
    assert spread.tokens_imbalance == 300 / (400 / 3)
    assert spread.context_imbalance is not None
    assert math.isclose(spread.context_imbalance, 300 / (500 / 3))
    assert spread.queue_imbalance == 3.0
    assert (spread_of(alone).tokens_imbalance, spread_of(alone).max_wall_time) == (None, None)
