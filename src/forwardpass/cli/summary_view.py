"""Knows how the summary of a trace reads to a person.

Plain text without colour, so that it is the same on a terminal, in a pipe and in a log. Every command
that ends with a trace (`demo`, `record`, `vllm serve`, `trace stats`) ends with this page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from forwardpass.analyze.capacity import Capacity
from forwardpass.analyze.derived import cached_fraction
from forwardpass.analyze.summary import Summary, summarize
from forwardpass.analyze.timing import NOT_SAID, scopes_of
from forwardpass.cli.output import aligned
from forwardpass.cli.terminal import printable
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.report import FileReport, TraceReport

__all__ = [
    "counted",
    "format_bytes",
    "format_count",
    "format_seconds",
    "format_time",
    "render_capacities",
    "render_summary",
    "summary_of_files",
]

_MANY_RANKS = 16
_MANY_FILES = 12


def summary_of_files(paths: Iterable[str | Path]) -> str:
    """Read the traces at ``paths`` (files, folders or prefixes) and return their summary as text.

    Raises :class:`~forwardpass.errors.TracePathError` where nothing is found.
    """
    reader = TraceReader(paths)
    summary = summarize(reader, scopes_of(reader.files))
    return render_summary(summary, reader.report)


def render_summary(
    summary: Summary, report: TraceReport | None = None, capacities: Sequence[Capacity] = ()
) -> str:
    """Return the summary as lines of text; with the files it came from if a ``report`` is given, and with
    what such a trace takes in the long run if ``capacities`` are.
    """
    if not summary.rows:
        return "\n".join(["The trace holds no rows.", "", *_files(report)]).rstrip()
    parts = [
        _head(summary),
        _kinds(summary),
        _totals(summary),
        _ranks(summary),
        _files(report),
        render_capacities(capacities),
        _notes(summary, report),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _head(summary: Summary) -> list[str]:
    begin = format_time(summary.first_observed_unix_ms)
    end = format_time(summary.last_observed_unix_ms)
    mode = "a sample of the passes" if summary.sampled else "every pass"
    meaning = "".join(summary.wall_times) if len(summary.wall_times) == 1 else ""
    return [
        f"{counted(summary.passes, 'pass', 'passes')} and {counted(summary.heartbeats, 'heartbeat')} of "
        f"{counted(len(summary.streams), 'rank')} in {format_seconds(summary.elapsed_seconds)} ({mode})",
        f"{begin} to {end}" + (f"; wall_time is {_scope(meaning)}" if meaning else ""),
    ]


def _scope(scope: str) -> str:
    """Return what a time measures as text; it may be a publisher's own word."""
    return printable(scope) or "not said"


def _kinds(summary: Summary) -> list[str]:
    head = ("kind of pass", "passes", "share", "p50", "p90", "p99", "max", "mean")
    mixed = len(summary.wall_times) > 1
    rows: list[tuple[str, ...]] = [(*head, "wall_time") if mixed else head]
    for kind in summary.kinds:
        times = (
            kind.p50_seconds, kind.p90_seconds, kind.p99_seconds, kind.max_seconds, kind.mean_seconds,
        )  # fmt: skip
        share = f"{100 * kind.passes / summary.passes:.1f} %"
        cells = (format_seconds(value) for value in times)
        meaning = (_scope(kind.wall_time),) if mixed else ()
        rows.append((str(kind.kind), format_count(kind.passes), share, *cells, *meaning))
    return aligned(rows) if len(rows) > 1 else []


def _totals(summary: Summary) -> list[str]:
    share = cached_fraction(summary.cached_tokens, summary.prefill_tokens)
    cached = "" if share is None else f", {100 * share:.1f} % of prompt tokens read, not computed"
    rate = f"{summary.tokens_per_second:,.0f} tokens/s" if summary.tokens_per_second else "no rate"
    busy = (
        f"; {summary.tokens_per_busy_second:,.0f} per busy second" if summary.tokens_per_busy_second else ""
    )
    rows = [
        (
            "tokens",
            f"{format_count(summary.prefill_tokens)} prefill, {format_count(summary.decode_tokens)} decode "
            f"({rate}{busy}){cached}",
        ),
        (
            "queue",
            f"{summary.queue.mean_requests:,.1f} requests waiting on average, "
            f"{format_count(summary.queue.max_requests)} "
            f"at most (with {format_count(summary.queue.max_prefill_tokens)} prompt tokens at most)",
        ),
        ("gaps", _gap_words(summary)),
    ]
    return [f"{name:<8}{text}" for name, text in rows]


def _gap_words(summary: Summary) -> str:
    words = []
    if summary.missing:
        words.append(f"{counted(summary.missing, 'message')} missing in {counted(summary.gaps, 'gap')}")
    elif not summary.sampled:
        words.append("none between the rows")
    if summary.sampled_out:
        stands_for = (summary.rows + summary.sampled_out) / summary.rows
        words.append(
            f"{counted(summary.sampled_out, 'message')} left out by sampling: each row stands for "
            f"{stands_for:.1f} on average"
        )
    if summary.restarts:
        words.append(f"{counted(summary.restarts, 'restart')} of a counter")
    if summary.turns:
        words.append(f"{counted(summary.turns, 'turn')} between publishers that share a name")
    if summary.duplicates:
        words.append(counted(summary.duplicates, "repeated row"))
    return ", ".join(words) or "sampled, so nothing can be said"


def _ranks(summary: Summary) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("worker", "rank", "passes", "heartbeats", "busy", "prefill", "decode", "missing", "restarts")
    ]
    mixed = len(summary.wall_times) > 1
    if mixed:
        rows[0] += ("wall_time",)
    for stream in summary.streams[:_MANY_RANKS]:
        busy = "" if stream.busy_fraction is None else f"{100 * stream.busy_fraction:.0f} %"
        missing = "sampled" if stream.gaps.sampled else str(stream.gaps.missing)
        rows.append(
            (
                printable(stream.worker_id) or "(none)",
                str(stream.dp_rank),
                format_count(stream.passes),
                format_count(stream.heartbeats),
                busy,
                format_count(stream.prefill_tokens),
                format_count(stream.decode_tokens),
                missing,
                str(stream.gaps.restarts),
            )
        )
        if mixed:
            rows[-1] += (" and ".join(map(_scope, stream.wall_times)),)
    more = len(summary.streams) - _MANY_RANKS
    return aligned(rows) + ([f"and {counted(more, 'more rank')}"] if more > 0 else [])


def _files(report: TraceReport | None) -> list[str]:
    if report is None or not report.files:
        return []
    rows: list[tuple[str, ...]] = [("file", "rows", "size", "text", "state")]
    rows += [_file_row(file) for file in report.files[:_MANY_FILES]]
    more = len(report.files) - _MANY_FILES
    tail = [f"and {counted(more, 'more file')}"] if more > 0 else []
    total = f"{counted(len(report.files), 'file')}, {format_bytes(report.size)}"
    return aligned(rows) + tail + ([total] if len(report.files) > 1 else [])


def _file_row(file: FileReport) -> tuple[str, ...]:
    state = "intact" if file.intact else counted(sum(file.problem_counts.values()), "problem")
    return (
        printable(file.path),
        format_count(file.rows),
        format_bytes(file.size),
        format_bytes(file.text_bytes),
        state,
    )


def render_capacities(capacities: Sequence[Capacity]) -> list[str]:
    """Return a table of what producers take in the long run; nothing without any."""
    rows: list[tuple[str, ...]] = [
        ("producer", "rows/s", "row", "ratio", "text a day", "disk a day", "disk kept", "time kept")
    ]
    for each in capacities:
        at_least, at_most = (
            format_seconds(each.kept_seconds_at_least),
            format_seconds(each.kept_seconds_at_most),
        )
        rows.append(
            (
                printable(each.producer_id, 24),
                f"{each.rows_per_second:,.3g}",
                f"{each.mean_row_bytes:.0f} B",
                f"{each.compression_ratio:.1f}",
                format_bytes(each.text_bytes_per_day),
                format_bytes(each.file_bytes_per_day),
                format_bytes(each.kept_file_bytes),
                f"{at_least} to {at_most}",
            )
        )
    return aligned(rows) if capacities else []


def _notes(summary: Summary, report: TraceReport | None) -> list[str]:
    notes = []
    if len(summary.wall_times) > 1:
        notes.append("Times of different meanings are not put together: see the column wall_time.")
    elif len(summary.producers) > 1 and summary.wall_times == (NOT_SAID,):
        notes.append(
            "Nobody said what wall_time measures here; the times of several recorders are put together."
        )
    if summary.sampled:
        notes.append("Sampled rows: the percentiles describe the sample; they are not valid as a p99.")
    elif summary.missing:
        notes.append("Messages are missing; `forwardpass trace gaps` says which, and why.")
    else:
        notes.append('No gap is not "no loss": what an engine dropped before numbering it leaves none.')
    if report is not None and not report.intact:
        notes.append("Some bytes or lines could not be used; `forwardpass trace verify` says which.")
    return notes


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number and its noun: ``1 gap``, ``1,204 gaps``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def format_count(number: int) -> str:
    """Return an integer with thousands separated."""
    return f"{number:,}"


def format_seconds(seconds: float | None) -> str:
    """Return a duration with a unit that fits: ``850 us``, ``12.5 ms``, ``3.2 s``, ``2.1 h``."""
    if seconds is None:
        return "-"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    if seconds < 100:
        return f"{seconds:.3g} s"
    if seconds < 6000:
        return f"{seconds / 60:.1f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} d"


def format_bytes(count: float) -> str:
    """Return a size in decimal units: ``812 B``, ``12.4 kB``, ``268 MB``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"


def format_time(unix_ms: int | None) -> str:
    """Return a moment in UTC to the millisecond, ISO 8601."""
    if unix_ms is None:
        return "-"
    moment = datetime.fromtimestamp(unix_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{unix_ms % 1000:03d}Z"
