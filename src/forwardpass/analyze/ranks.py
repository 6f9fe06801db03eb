"""Knows which messages of a worker's ranks belong together: those that were observed at nearly the same time.

Counters cannot say it, because ranks count for themselves and drift apart. So every row of one rank, the
anchor, takes the nearest row of each other rank, and no row is used twice. How far apart the rows of a group
are is part of the result: a group is one iteration only where the ranks run in lockstep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from forwardpass.analyze.derived import queue_depth, ratio, tokens_of, total_context
from forwardpass.trace.record import TraceRecord

__all__ = [
    "DEFAULT_MAX_SKEW_MS",
    "RankGroup",
    "RankSpread",
    "WorkerName",
    "group_ranks",
    "ranks_of_workers",
    "spread_of",
    "worker_of",
]

DEFAULT_MAX_SKEW_MS = 1000
SILENT_MS = 30_000
"""Without a row of the anchor for so long another takes its place; sampled rows come every few seconds."""


class WorkerName(NamedTuple):
    """Whose ranks belong together."""

    namespace: str
    component: str
    worker_id: str
    producer_id: str
    """Empty but for workers without an id, which their recorder tells apart."""


class RankGroup(Struct, frozen=True):
    """Rows of several ranks of one worker, observed at nearly the same time."""

    worker: WorkerName
    rows: tuple[TraceRecord, ...]
    """One for each rank that is there, in the order of ranks."""
    missing: tuple[int, ...]
    """Ranks of the worker without a row near enough."""
    skew_ms: int
    """Between the earliest and the latest observation of the group."""


class RankSpread(Struct, frozen=True):
    """How unlike the ranks of a group are. An imbalance is largest / mean: 1 is even; ``None`` of no load."""

    ranks: int
    skew_ms: int
    max_wall_time: float | None
    """Seconds; the slowest rank, which the others wait for in lockstep. ``None`` where no pass took time."""
    wall_time_spread: float | None
    """Seconds between the slowest and the fastest rank, of those whose pass took time."""
    tokens_imbalance: float | None
    context_imbalance: float | None
    queue_imbalance: float | None


def worker_of(record: TraceRecord) -> WorkerName:
    """Return the worker whose rank wrote a row."""
    source, worker = record.source, record.metrics.worker_id
    return WorkerName(source.namespace, source.component, worker, "" if worker else source.producer_id)


def ranks_of_workers(records: Iterable[TraceRecord]) -> dict[WorkerName, frozenset[int]]:
    """Return the ranks of each worker that occur."""
    found: dict[WorkerName, set[int]] = {}
    for record in records:
        found.setdefault(worker_of(record), set()).add(record.metrics.dp_rank)
    return {worker: frozenset(ranks) for worker, ranks in found.items()}


def group_ranks(
    records: Iterable[TraceRecord],
    *,
    ranks: Mapping[WorkerName, frozenset[int]] | None = None,
    max_skew_ms: int = DEFAULT_MAX_SKEW_MS,
) -> Iterator[RankGroup]:
    """Yield the groups of every worker, one for each row of its anchor; memory is a few rows for each rank.

    ``records`` come roughly in the order of time, as in one producer's trace or a merged one. The anchor is
    the lowest rank, or another while that one is silent; a row joins if no other of its rank is nearer, no
    other row of the anchor is nearer to it, and it is at most ``max_skew_ms`` away. Rows that join nowhere
    are left out. ``ranks`` says which ranks a worker has (:func:`ranks_of_workers`); without it those that
    were seen so far.
    """
    groupers: dict[WorkerName, _Grouper] = {}
    for record in records:
        worker = worker_of(record)
        grouper = groupers.get(worker)
        if grouper is None:
            known = (ranks or {}).get(worker, frozenset())
            grouper = groupers[worker] = _Grouper(worker, known, max_skew_ms)
        group = grouper.add(record)
        if group is not None:
            yield group
    for grouper in groupers.values():
        group = grouper.close()
        if group is not None:
            yield group


def spread_of(group: RankGroup) -> RankSpread:
    """Return how unlike the ranks of ``group`` are."""
    messages = [row.metrics for row in group.rows]
    times = [message.wall_time for message in messages if 0 < message.wall_time < float("inf")]
    return RankSpread(
        ranks=len(messages),
        skew_ms=group.skew_ms,
        max_wall_time=max(times, default=None),
        wall_time_spread=max(times) - min(times) if times else None,
        tokens_imbalance=_imbalance([tokens_of(message) for message in messages]),
        context_imbalance=_imbalance([total_context(message) for message in messages]),
        queue_imbalance=_imbalance([queue_depth(message) for message in messages]),
    )


def _imbalance(loads: list[int]) -> float | None:
    return ratio(max(loads) * len(loads), sum(loads))


class _Grouper:
    """The rows of one worker since its last group."""

    def __init__(self, worker: WorkerName, ranks: frozenset[int], max_skew_ms: int) -> None:
        self._worker = worker
        self._ranks = set(ranks)
        self._max_skew_ms = max_skew_ms
        self._first: TraceRecord | None = None
        self._anchor: TraceRecord | None = None
        self._before: dict[int, TraceRecord] = {}  # nearest to the anchor, of the rows before it
        self._nearest: dict[int, TraceRecord] = {}  # nearest to the anchor, of the rows after it
        self._last: dict[int, TraceRecord] = {}  # the last row since the anchor

    def add(self, record: TraceRecord) -> RankGroup | None:
        """Take a row; return the group that it ends."""
        rank = record.metrics.dp_rank
        self._ranks.add(rank)
        anchor = self._anchor
        if anchor is None and self._lower_rank_may_come(record):
            self._last[rank] = record
            return None
        if anchor is not None and rank > anchor.metrics.dp_rank and _distance(record, anchor) <= SILENT_MS:
            nearest = self._nearest.get(rank)
            if nearest is None or _distance(record, anchor) < _distance(nearest, anchor):
                self._nearest[rank] = record
            self._last[rank] = record
            return None
        group = self._group(record)
        self._before = {
            other: row
            for other, row in self._last.items()
            if other != rank and (anchor is None or _distance(row, record) < _distance(row, anchor))
        }
        self._anchor, self._nearest, self._last = record, {}, {}
        return group

    def _lower_rank_may_come(self, record: TraceRecord) -> bool:
        """Say whether a lower rank is known that did not have the time to speak yet."""
        if self._first is None:
            self._first = record
        return record.metrics.dp_rank > min(self._ranks) and _distance(record, self._first) <= SILENT_MS

    def close(self) -> RankGroup | None:
        """Return the last group."""
        return self._group(None)

    def _group(self, following: TraceRecord | None) -> RankGroup | None:
        """Return the anchor's group, given the anchor that comes next; ``None`` before the first one."""
        anchor = self._anchor
        if anchor is None:
            return None
        members = {anchor.metrics.dp_rank: anchor}
        for candidates in (self._before, self._nearest):
            for rank, row in candidates.items():
                apart = _distance(row, anchor)
                if apart > self._max_skew_ms:
                    continue
                if following is not None and _distance(row, following) < apart:
                    continue  # it belongs to the next one
                if rank not in members or apart < _distance(members[rank], anchor):
                    members[rank] = row
        rows = tuple(row for _, row in sorted(members.items()))
        times = [row.observed_at_unix_ms for row in rows]
        missing = tuple(sorted(self._ranks - members.keys()))
        return RankGroup(self._worker, rows, missing, max(times) - min(times))


def _distance(one: TraceRecord, other: TraceRecord) -> int:
    return abs(one.observed_at_unix_ms - other.observed_at_unix_ms)
