"""Knows how the health of trace files reads to a person."""

from __future__ import annotations

from collections.abc import Sequence

from forwardpass.cli.output import aligned
from forwardpass.cli.summary_view import counted, format_bytes, format_count
from forwardpass.cli.terminal import printable
from forwardpass.trace.report import FileReport, TraceReport

__all__ = ["render_health"]

_SHOWN_PROBLEMS = 10


def render_health(report: TraceReport) -> list[str]:
    """Return lines: a table of the files, each file's problems, and a verdict."""
    rows: list[tuple[str, ...]] = [("file", "state", "rows safe", "members", "size", "damaged")]
    rows += [_row(file) for file in report.files]
    problems = [line for file in report.files for line in _problems(file)]
    return [*aligned(rows), *problems, _verdict(report)]


def _row(file: FileReport) -> tuple[str, ...]:
    return (
        printable(file.path),
        "intact" if file.intact else "damaged",
        format_count(file.rows),
        format_count(file.members),
        format_bytes(file.size),
        format_bytes(file.damaged_bytes),
    )


def _problems(file: FileReport) -> Sequence[str]:
    lines = [printable(str(problem), 400) for problem in file.problems[:_SHOWN_PROBLEMS]]
    more = sum(file.problem_counts.values()) - len(lines)
    if more > 0:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(file.problem_counts.items()))
        lines.append(f"{printable(file.path)}: and {more} more problems ({kinds} in all)")
    return lines


def _verdict(report: TraceReport) -> str:
    unverified = sum(file.unverified_rows for file in report.files)
    safe = f"{counted(report.rows, 'row')} {'is' if report.rows == 1 else 'are'} safe"
    if unverified:
        safe += (
            f"; {format_count(unverified)} more in torn members, without a checksum (--unverified shows them)"
        )
    if report.intact:
        return f"intact: {safe}"
    damaged = sum(not file.intact for file in report.files)
    return f"damaged: {damaged} of {counted(len(report.files), 'file')}; {safe}"
