"""Knows how ``trace cat`` prints rows, those of a finished trace and those that are still being written."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import islice

from forwardpass.cli.main import Exit
from forwardpass.cli.output import say, write_bytes, write_lines
from forwardpass.cli.tail_view import HEADER, table_line
from forwardpass.cli.terminal import json_for_terminal, printable
from forwardpass.cli.trace_paths import named
from forwardpass.trace.follow import TraceFollower
from forwardpass.trace.record import TraceRecord
from forwardpass.trace.report import Problem
from forwardpass.trace.row_filter import RowFilter

__all__ = ["follow_rows", "print_rows"]

_BLOCK = 256
_POLL_SECONDS = 0.25


def print_rows(rows: Iterator[TraceRecord], *, compact: bool, header: bool = True) -> None:
    """Print rows as they were written, or as a table with a ``header``."""
    terminal = sys.stdout.isatty()
    if compact and header:
        write_lines([HEADER])
    while block := list(islice(rows, _BLOCK)):
        if compact:
            write_lines(
                table_line(row.metrics, row.observed_at_unix_ms, data_parallel=False) for row in block
            )
        elif terminal:
            write_lines(json_for_terminal(row.line.decode()) for row in block)
        else:
            write_bytes(row.line for row in block)


def follow_rows(paths: tuple[str, ...], wanted: RowFilter, *, limit: int | None, compact: bool) -> Exit:
    """Print rows as they come, until there are ``limit`` of them or somebody interrupts."""
    problems = 0

    def tell(problem: Problem) -> None:
        nonlocal problems
        problems += 1
        say(printable(str(problem), 400))

    follower = TraceFollower(named(paths), tell)
    shown, pause = 0, threading.Event()
    if compact:
        write_lines([HEADER])
    try:
        while True:
            for batch in follower.poll():
                rows = [row for row in batch if wanted.keeps(row)]
                rows = rows if limit is None else rows[: limit - shown]
                print_rows(iter(rows), compact=compact, header=False)
                shown += len(rows)
                if shown == limit:
                    return Exit.PARTIAL if problems else Exit.DONE
            pause.wait(_POLL_SECONDS)
    finally:
        follower.close()
