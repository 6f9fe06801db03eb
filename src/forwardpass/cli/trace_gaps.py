"""Knows the command that says what a trace does not contain, and why: ``trace gaps``.

Exit codes: 0 no counter is missing but for sampling; 1 some are; 2 wrong use; 3 nothing there, or it cannot
be read.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from forwardpass.analyze.causes import Cause, Gap
from forwardpass.analyze.coverage import StreamId
from forwardpass.analyze.gap_report import GapReport, RecorderRun, Silence, StreamReport, report_gaps
from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import WholeNumber
from forwardpass.cli.output import aligned, ending_quietly, write_json, write_lines
from forwardpass.cli.summary_view import counted, format_count, format_time
from forwardpass.cli.terminal import printable
from forwardpass.cli.trace_filter import filter_options
from forwardpass.cli.trace_paths import find, paths_argument, unverified_option
from forwardpass.cli.trace_problems import say_problems
from forwardpass.trace.row_filter import RowFilter

__all__ = ["gaps", "render_gaps"]

SHOWN_GAPS = 20

_NO_LOSS = (
    "No gap is not “no loss”: an engine can drop a pass before it numbers it, and nothing is known before "
    "the first row and after the last."
)
_SAMPLED = "Sampled: rows stand for many passes. Not valid for p99, sums or gaps between rows."


@click.command()
@paths_argument
@filter_options
@click.option("--limit", type=WholeNumber(1), default=SHOWN_GAPS, show_default=True, help="Gaps to show.")
@unverified_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document, with every gap.")
def gaps(paths: tuple[str, ...], wanted: RowFilter, limit: int, unverified: bool, as_json: bool) -> int:
    """Say which counters are missing, and why.

    A publisher numbers its messages; what is not in the trace was left out by sampling, lost in a full queue,
    a full socket or without a connection, fell into a restart or into a time without a recorder, or is in a
    damaged or deleted part of the files. The ledger that a recorder writes beside its segments tells which.
    Without one (other writers have none) it is said what cannot be known.

    Exit code 1 if counters are missing for another reason than sampling.

    \b
    Examples:
      forwardpass trace gaps /tmp/dynamo-fpm
      forwardpass trace gaps /var/log/fpm --rank 5 --since 2026-11-30T14:02:00Z --json
    """
    report = report_gaps(find(paths), keep=wanted.keeps, unverified=unverified)
    with ending_quietly():
        if as_json:
            write_json(report)
        else:
            write_lines(render_gaps(report, limit))
    say_problems(report.problems, report.problem_count)
    return Exit.FINDING if report.missing else Exit.DONE


def render_gaps(report: GapReport, limit: int) -> list[str]:
    """Return the report as lines of text, with at most ``limit`` gaps."""
    if not report.rows:
        return ["The trace holds no rows."]
    parts = [
        _streams(report.streams),
        _gaps(report.gaps, report.streams, limit, report.gaps_omitted),
        _silences(report.silences, limit),
        _recorders(report.recorders),
        _notes(report),
    ]
    lines: list[str] = []
    for part in filter(None, parts):
        lines += ["", *part] if lines else part
    return lines


def _streams(streams: Sequence[StreamReport]) -> list[str]:
    rows = [("stream", "rows", "counters", "missing", "why")]
    rows += [
        (
            _name(StreamId(each.namespace, each.component, each.worker_id, each.dp_rank)),
            format_count(each.rows),
            f"{each.first_counter}..{each.last_counter}",
            format_count(each.missing + (each.lost_unseen or 0)),
            _why(each),
        )
        for each in streams
    ]
    lines = aligned([row[:4] for row in rows])
    width = max(map(len, lines))
    return [f"{line.ljust(width)}  {row[4]}".rstrip() for line, row in zip(lines, rows, strict=True)]


def _why(each: StreamReport) -> str:
    words = [f"{cause} {format_count(count)}" for cause, count in each.by_cause.items() if count]
    if each.lost_unseen:
        words.append(f"before the writer {format_count(each.lost_unseen)}")
    if each.sampled:
        words.append(f"{Cause.SAMPLING} left out {format_count(each.sampled_out)}")
        if each.lost_unseen is None:
            words.append("whether more was lost is not known")
    if each.restarts:
        words.append(counted(each.restarts, "restart"))
    if each.shared_name:
        words.append("two publishers share this name")
    if each.duplicates:
        words.append(counted(each.duplicates, "repeated row"))
    if each.holes_omitted:
        words.append(f"{counted(each.holes_omitted, 'more gap')} not looked at")
    return ", ".join(words)


def _name(stream: StreamId) -> str:
    return printable(f"{stream.namespace}.{stream.component} {stream.worker_id} rank {stream.dp_rank}", 80)


def _gaps(found: Sequence[Gap], streams: Sequence[StreamReport], limit: int, omitted: int) -> list[str]:
    if not found:
        if any(each.sampled and each.lost_unseen is None for each in streams):
            return ["No gap is known; a sample without a ledger cannot show one."]
        return ["No counter is missing between the first and the last row."]
    rows = [("row after it", "stream", "counters", "count", "why")]
    for gap in found[:limit]:
        counters = f"{gap.first}..{gap.last}" if gap.count else "-"
        rows.append(
            (format_time(gap.after_unix_ms), _name(gap.stream), counters, format_count(gap.count), gap.cause)
        )
    lines = aligned(rows, left=3)
    said = [lines[0]]
    for line, gap in zip(lines[1:], found, strict=False):
        said += [line, f"    {printable(gap.evidence, 200)}"]
    more = len(found) - limit + omitted
    return said + ([f"{counted(more, 'more gap')}; --limit or --json shows them"] if more > 0 else [])


def _silences(silences: Sequence[Silence], limit: int) -> list[str]:
    if not silences:
        return []
    rows = [("silent until", "stream", "seconds")]
    rows += [
        (
            format_time(each.until_unix_ms),
            printable(f"{each.worker_id or '?'} rank {each.dp_rank} at {each.url}", 80),
            f"{each.seconds:,.1f}",
        )
        for each in silences[:limit]
    ]
    more = len(silences) - limit
    lines = aligned(rows, left=2)
    return lines + ([f"{counted(more, 'more silence')}; --limit or --json shows them"] if more > 0 else [])


def _recorders(runs: Sequence[RecorderRun]) -> list[str]:
    rows = [("recorder", "from", "last line", "offered", "written", "sampled out", "dropped", "pending", "")]
    rows += [
        (
            printable(run.producer_id, 40),
            format_time(run.from_unix_ms),
            format_time(run.to_unix_ms),
            format_count(run.totals.offered),
            format_count(run.totals.written),
            format_count(run.totals.sampled_out),
            format_count(sum(run.totals.dropped.values())),
            format_count(run.totals.pending),
            ("stopped" if run.closed else "no last word") + ("" if run.adds_up else ", DOES NOT ADD UP"),
        )
        for run in runs
    ]
    return aligned(rows) if runs else []


def _notes(report: GapReport) -> list[str]:
    notes = []
    if report.files_without_ledger:
        notes.append(
            f"{counted(report.files_without_ledger, 'file')} of {report.files} without a ledger: losses in a "
            "queue, in a socket and on the wire cannot be told apart there."
        )
    if report.silences:
        notes.append("Silent: connected, but not even a heartbeat. Paused, hung, or the engine sends none.")
    if report.bad_ledger_lines:
        notes.append(f"{counted(report.bad_ledger_lines, 'ledger line')} could not be used.")
    if any(each.sampled for each in report.streams):
        notes.append(_SAMPLED)
    notes.append(_NO_LOSS)
    return notes
