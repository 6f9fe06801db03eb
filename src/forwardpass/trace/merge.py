"""Knows how the traces of many producers and hosts become one, in the order of time, each message once.

Rows are ordered by when they were observed (the wall clocks of different hosts, as exact as those are).
Memory is bounded whatever the traces hold: at most ``FAN_IN`` producers are read at a time, and more are
merged into temporary files first. Rows within ``REORDER_ROWS`` of their place in a producer's own files are
put in order, for sampled mode writes rank after rank.

A message that several producers recorded is the same payload of the same source, observed within
``SAME_MS``. It may also occur twice in truth (a publisher that restarts begins with the same heartbeat), so
it is given as often as by the producer that saw it most often. Rows of collectors say which message they
were made of, so that they are told apart exactly: each message once, however far apart its rows stand.
"""

from __future__ import annotations

import heapq
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from forwardpass.trace.discover import by_producer, find_segments
from forwardpass.trace.new_file import NewTraceFile
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.record import TraceRecord
from forwardpass.trace.report import Problem
from forwardpass.trace.seen import SeenMessages
from forwardpass.wire.schema import ForwardPassMetrics

__all__ = ["FAN_IN", "REORDER_ROWS", "SAME_MS", "MergeCounts", "merge_traces"]

FAN_IN = 32
REORDER_ROWS = 1024
SAME_MS = 10_000
MAX_REMEMBERED = 65_536
"""Messages that are remembered for being the same."""

_COLLECTED = -1
"""The one series that all collectors are together: what they wrote is known to be different messages."""

Rows = Iterator[TraceRecord]


class MergeCounts(Struct):
    """What a merge did so far."""

    rows: int = 0
    """Rows given."""
    duplicates: int = 0
    """Rows left out because another row is the same message."""
    late: int = 0
    """Rows given after one that was observed later: they stood too far from their place."""


def merge_traces(
    paths: str | Path | Sequence[str | Path],
    *,
    on_problem: Callable[[Problem], None],
    counts: MergeCounts | None = None,
    keep: Callable[[TraceRecord], bool] | None = None,
    unverified: bool = False,
    temporary_folder: str | Path | None = None,
) -> Rows:
    """Yield the rows of all traces at ``paths`` in the order in which they were observed.

    ``on_problem`` is called for everything that could not be used; rows that ``keep`` refuses are as if
    they were not there. ``temporary_folder`` is where more than
    ``FAN_IN`` producers are merged (default: the system's). Raises
    :class:`~forwardpass.errors.TracePathError` for a path that stands for nothing or cannot be read.
    """
    counts = MergeCounts() if counts is None else counts
    series: list[Rows] = [
        filter(keep, TraceReader(files, on_problem=on_problem, unverified=unverified))
        for files in by_producer(find_segments(paths))
    ]
    return _merged(series, counts, temporary_folder)


def _merged(series: list[Rows], counts: MergeCounts, temporary_folder: str | Path | None) -> Rows:
    with ExitStack() as stack:
        if len(series) > FAN_IN:
            folder = stack.enter_context(tempfile.TemporaryDirectory("-merge", "fpm-", temporary_folder))
            series = _spilled(series, counts, Path(folder))
        last = 0
        for row in _once(series, counts):
            counts.rows += 1
            counts.late += row.observed_at_unix_ms < last
            last = max(last, row.observed_at_unix_ms)
            yield row


def _spilled(series: list[Rows], counts: MergeCounts, folder: Path) -> list[Rows]:
    """Merge into files until there are few enough. What is the same is left out here as well: as often as in
    the one of many that has it most often, and then of those.
    """
    written = 0
    while len(series) > FAN_IN:
        merged: list[Rows] = []
        for first in range(0, len(series), FAN_IN):
            path = folder / f"{written}.jsonl.gz"
            written += 1
            with NewTraceFile(path) as spill:
                for row in _once(series[first : first + FAN_IN], counts):
                    spill.add(row.line)
            if spill.rows:
                merged.append(iter(TraceReader(path)))
        series = merged
    return series


def _in_order(rows: Rows, number: int) -> Iterator[tuple[int, int, int, TraceRecord]]:
    """Yield (time, series, place, row) of one series, put in order as far as ``REORDER_ROWS`` allow."""
    waiting: list[tuple[int, int, int, TraceRecord]] = []
    for place, row in enumerate(rows):
        entry = (row.observed_at_unix_ms, number, place, row)
        if len(waiting) < REORDER_ROWS:
            heapq.heappush(waiting, entry)
        else:
            yield heapq.heappushpop(waiting, entry)
    while waiting:
        yield heapq.heappop(waiting)


def _once(series: Sequence[Rows], counts: MergeCounts) -> Rows:
    same = _Same()
    for _, number, _, row in heapq.merge(*(_in_order(rows, at) for at, rows in enumerate(series))):
        if same.is_new(row, number):
            yield row
        else:
            counts.duplicates += 1


class _Seen:
    """How often one message was given, and how often each series had it."""

    __slots__ = ("at", "by_series", "given")

    def __init__(self, at: int) -> None:
        self.at = at
        self.given = 0
        self.by_series: dict[int, int] = {}


class _Same:
    """Tells rows of the same message from each other."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str, ForwardPassMetrics], _Seen] = OrderedDict()
        self._collected = SeenMessages()

    def is_new(self, row: TraceRecord, series: int) -> bool:
        """Say whether the message of ``row`` has to be given (again)."""
        if row.message_id is not None:
            if not self._collected.add(row.message_id):
                return False
            series = _COLLECTED
        key = (row.source.namespace, row.source.component, row.metrics)
        at = row.observed_at_unix_ms
        seen = self._seen.get(key)
        if seen is None or at - seen.at > SAME_MS:
            self._seen[key] = seen = _Seen(at)
            self._seen.move_to_end(key)
            self._forget(at)
        times = seen.by_series[series] = seen.by_series.get(series, 0) + 1
        if times <= seen.given:
            return False
        seen.given += 1
        return True

    def _forget(self, now: int) -> None:
        seen = self._seen
        while len(seen) > MAX_REMEMBERED or now - next(iter(seen.values())).at > SAME_MS:
            seen.popitem(last=False)
