"""Knows how a whole trace is explained: every stream, what is missing of it, why, and what cannot be told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec import Struct, field

from forwardpass.analyze.causes import Cause, Gap, explain, explain_sampled
from forwardpass.analyze.coverage import Allowance, Coverage, SeriesReader, StreamId
from forwardpass.analyze.missing import missing_of
from forwardpass.trace.discover import by_producer
from forwardpass.trace.ledger import EventKind, LedgerTotals
from forwardpass.trace.ledger_reader import Ledger, Run, read_ledger
from forwardpass.trace.record import TraceRecord
from forwardpass.trace.report import Problem

__all__ = ["GapReport", "RecorderRun", "Silence", "StreamReport", "report_gaps"]

MAX_GAPS = 100_000
MAX_PROBLEMS = 10_000
"""Problems that are listed of all files together; the rest is counted."""


class StreamReport(Struct, frozen=True):
    """One stream, all its recorders together."""

    namespace: str
    component: str
    worker_id: str
    dp_rank: int
    recorders: int
    rows: int
    first_counter: int
    """Of the earliest row: what was published before it was not recorded."""
    last_counter: int
    """Of the latest row."""
    first_observed_unix_ms: int
    last_observed_unix_ms: int
    sampled: bool
    sampled_out: int
    """Counters between the rows of sampled mode."""
    lost_unseen: int | None
    """Of a sampled stream: messages that never reached the recorder, as its ledger counted; ``None`` where
    that is not known, or the stream is not sampled.
    """
    duplicates: int
    restarts: int
    shared_name: bool
    """Two publishers under this name took turns."""
    missing: int
    """Counters in gaps."""
    by_cause: dict[Cause, int]
    holes_omitted: int
    """Gaps beyond those that are looked at."""


class RecorderRun(Struct, frozen=True):
    """One life of a recorder, from its ledger."""

    producer_id: str
    run: str
    capture_mode: str
    from_unix_ms: int
    to_unix_ms: int
    closed: bool
    """It was stopped; otherwise it runs, or ended without a last word."""
    totals: LedgerTotals
    adds_up: bool
    """``offered = written + sampled_out + pending + dropped``."""
    events_omitted: int


class Silence(Struct, frozen=True):
    """A connected publisher said nothing, not even a heartbeat: paused, hung, or it has none.

    Counters do not tell: what an engine does not publish has no number.
    """

    url: str
    worker_id: str | None
    dp_rank: int | None
    until_unix_ms: int
    seconds: float


class GapReport(Struct):
    """All that can be said about what a trace does not contain."""

    streams: list[StreamReport] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    """By the time of the row after them."""
    gaps_omitted: int = 0
    silences: list[Silence] = field(default_factory=list)
    """By their end; also of streams that were not asked for."""
    recorders: list[RecorderRun] = field(default_factory=list)
    """By their beginning."""
    rows: int = 0
    files: int = 0
    files_without_ledger: int = 0
    bad_ledger_lines: int = 0
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0

    @property
    def missing(self) -> int:
        """Counters that are missing for another reason than sampling."""
        return sum(stream.missing + (stream.lost_unseen or 0) for stream in self.streams)


class _Recorded(Struct):
    coverage: Coverage
    ledger: Ledger


def report_gaps(
    files: Iterable[Path],
    *,
    keep: Callable[[TraceRecord], bool] = lambda row: True,
    unverified: bool = False,
) -> GapReport:
    """Explain what is missing in the traces in ``files``, of the rows that ``keep`` lets through.

    Raises :class:`~forwardpass.errors.TracePathError` for a file that cannot be read.
    """
    report = GapReport()
    allowance = Allowance()
    streams: dict[StreamId, list[_Recorded]] = {}
    for series in by_producer(files):
        reader = SeriesReader(series, unverified=unverified, allowance=allowance)
        coverages = reader.read(keep)
        ledger = read_ledger(series)
        _add_series(report, reader, ledger)
        for coverage in coverages:
            streams.setdefault(coverage.stream, []).append(_Recorded(coverage, ledger))
    for stream, recorded in sorted(streams.items()):
        _add_stream(report, stream, recorded)
    report.silences.sort(key=lambda silence: silence.until_unix_ms)
    report.recorders.sort(key=lambda run: (run.from_unix_ms, run.run))
    report.gaps.sort(key=lambda gap: (gap.after_unix_ms, gap.stream, gap.first))
    report.gaps_omitted += max(0, len(report.gaps) - MAX_GAPS)
    del report.gaps[MAX_GAPS:]
    return report


def _add_series(report: GapReport, reader: SeriesReader, ledger: Ledger) -> None:
    report.rows += reader.rows
    report.files += len(reader.files)
    report.files_without_ledger += ledger.missing
    report.bad_ledger_lines += ledger.bad_lines
    report.problems += reader.problems[: MAX_PROBLEMS - len(report.problems)]
    report.problem_count += reader.problem_count
    report.recorders += [_run(run) for run in ledger.runs]
    report.silences += [
        Silence(event.url, event.worker_id, event.dp_rank, event.unix_ms, event.seconds or 0.0)
        for run in ledger.runs
        for event in run.events
        if event.kind is EventKind.SILENT
    ]


def _run(run: Run) -> RecorderRun:
    totals = run.totals
    known = totals.written + totals.sampled_out + totals.pending + sum(totals.dropped.values())
    return RecorderRun(
        run.producer_id,
        run.run,
        run.capture_mode,
        run.from_unix_ms,
        run.to_unix_ms,
        run.closed,
        totals,
        totals.offered == known,
        run.omitted,
    )


def _add_stream(report: GapReport, stream: StreamId, recorded: Sequence[_Recorded]) -> None:
    coverages = [each.coverage for each in recorded]
    ledgers = [each.ledger for each in recorded]
    sampled = any(coverage.sampled for coverage in coverages)
    gaps = [gap for each in missing_of(coverages) for gap in explain(stream, each, ledgers)]
    unseen: int | None = None
    if sampled:
        found, unseen = explain_sampled(stream, ledgers)
        gaps += found
    by_cause: dict[Cause, int] = {}
    for gap in gaps:
        by_cause[gap.cause] = by_cause.get(gap.cause, 0) + gap.count
    first = min(coverages, key=lambda each: each.first_ms)
    last = max(coverages, key=lambda each: each.last_ms)
    placed = sum(gap.count for gap in gaps)
    report.gaps += gaps
    report.streams.append(
        StreamReport(
            *stream,
            recorders=len(recorded),
            rows=sum(each.rows for each in coverages),
            first_counter=first.first_counter,
            last_counter=last.last_counter,
            first_observed_unix_ms=first.first_ms,
            last_observed_unix_ms=last.last_ms,
            sampled=sampled,
            sampled_out=sum(each.sampled_out for each in coverages),
            lost_unseen=None if unseen is None else max(0, unseen - placed),
            duplicates=sum(each.duplicates for each in coverages),
            restarts=max(sum(gap.cause is Cause.RESTART for gap in gaps), *(c.restarts for c in coverages)),
            shared_name=any(each.turns for each in coverages),
            missing=placed,
            by_cause=dict(sorted(by_cause.items(), key=lambda item: -item[1])),
            holes_omitted=sum(each.holes_omitted for each in coverages),
        )
    )
