"""Knows the command that makes one stream of many traces: ``trace merge``.

Exit codes: 0 done; 2 wrong use; 3 nothing there, not readable or not writable; 4 some bytes or lines could
not be used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from forwardpass.cli.output import ending_quietly, say
from forwardpass.cli.summary_view import counted
from forwardpass.cli.trace_cat import print_rows
from forwardpass.cli.trace_filter import filter_options
from forwardpass.cli.trace_paths import named, paths_argument, unverified_option
from forwardpass.cli.trace_problems import SAID_PROBLEMS, say_problems
from forwardpass.trace.merge import MergeCounts, merge_traces
from forwardpass.trace.new_file import NewTraceFile
from forwardpass.trace.record import TraceRecord
from forwardpass.trace.report import Problem
from forwardpass.trace.row_filter import RowFilter

__all__ = ["merge"]


@click.command()
@paths_argument
@click.option("--output", "-o", metavar="FILE", help="A new gzip file instead of lines on stdout.")
@filter_options
@unverified_option
def merge(paths: tuple[str, ...], output: str | None, wanted: RowFilter, unverified: bool) -> int:
    """Make one stream, in the order of time, of many traces.

    Rows are ordered by when they were observed. A message that several producers recorded is there once.
    Any number of producers in bounded memory; beyond 32 the system's folder for temporary files is used.

    Exit code 4 if some bytes or lines could not be used.

    \b
    Examples:
      forwardpass trace merge host1/ host2/ --output fleet.jsonl.gz
      forwardpass trace merge /var/log/fpm --rank 5 --since 2026-11-30T14:02:00Z | jq .event.fpm.wall_time
    """
    first: list[Problem] = []
    told = 0

    def note(problem: Problem) -> None:
        nonlocal told
        told += 1
        if len(first) < SAID_PROBLEMS:
            first.append(problem)

    counts = MergeCounts()
    rows = merge_traces(
        named(paths), on_problem=note, counts=counts, keep=wanted.keeps, unverified=unverified
    )
    with ending_quietly():
        if output is None:
            print_rows(rows, compact=False)
        else:
            _write(Path(output), rows)
    status = say_problems(first, told)
    say(_words(counts))
    return status


def _write(path: Path, rows: Iterator[TraceRecord]) -> None:
    with NewTraceFile(path) as file:
        for row in rows:
            file.add(row.line)


def _words(counts: MergeCounts) -> str:
    words = counted(counts.rows, "row")
    if counts.duplicates:
        words += f"; {counted(counts.duplicates, 'row')} of the same messages left out"
    if counts.late:
        words += f"; {counted(counts.late, 'row')} out of order, too far from their place to be sorted"
    return words
