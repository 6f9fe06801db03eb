"""Knows the commands that look into trace files: ``trace ls``, ``cat``, ``stats`` and ``verify``.

Exit codes: 0 done; 1 ``verify`` found damage; 2 wrong use; 3 nothing there or not readable; 4 ``cat`` and
``stats`` could not use some bytes or lines, and said so on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import click

from forwardpass.analyze.capacity import Capacity, capacity_of
from forwardpass.analyze.summary import Summary, summarize
from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import WholeNumber
from forwardpass.cli.output import ending_quietly, say, write_bytes, write_json, write_lines
from forwardpass.cli.summary_view import render_summary
from forwardpass.cli.tail_view import HEADER, table_line
from forwardpass.cli.terminal import json_for_terminal, printable
from forwardpass.cli.trace_clean import clean
from forwardpass.cli.trace_filter import RowFilter, moment_option
from forwardpass.cli.trace_list import count_rows, list_file, render_list
from forwardpass.cli.trace_verify_view import render_health
from forwardpass.config import variables
from forwardpass.config.settings import Sources
from forwardpass.errors import ConfigError, TracePathError
from forwardpass.trace.reader import TraceReader, find_segments
from forwardpass.trace.record import TraceRecord
from forwardpass.trace.report import TraceReport

__all__ = ["trace"]

_SAID_PROBLEMS = 5
_BLOCK = 256

_paths = click.argument("paths", nargs=-1, metavar="[PREFIX|FOLDER|FILE]...")
_json = click.option("--json", "as_json", is_flag=True, help="One JSON document.")
_unverified = click.option(
    "--unverified", is_flag=True, help="Also the whole rows of torn members, which no checksum proves."
)


@click.group()
def trace() -> None:
    """List, print, sum up and verify trace files.

    Traces are named by the prefix they were recorded with, by folder, or by file (any name; gzip or plain
    JSON lines, told apart by content). Without one: DYN_FPM_OUTPUT_PATH, or /tmp/dynamo-fpm.

    Exit code 3 if nothing is found there or it cannot be read.

    \b
    Examples:
      forwardpass trace stats /tmp/dynamo-fpm
      forwardpass trace verify /var/log/fpm
    """


@trace.command()
@_paths
@click.option("--count", is_flag=True, help="Read everything and also give rows, members and health.")
@_json
def ls(paths: tuple[str, ...], count: bool, as_json: bool) -> None:
    """List the files: producer, size, first and last row.

    Exit code 3 if there are none.

    \b
    Examples:
      forwardpass trace ls /tmp/dynamo-fpm
      forwardpass trace ls traces/ --count --json
    """
    found = (count_rows(path) if count else list_file(path) for path in _find(paths))
    files = [file for file in found if file is not None]
    with ending_quietly():
        if as_json:
            write_json(files)
        else:
            write_lines(render_list(files))


@trace.command()
@_paths
@click.option("--compact", is_flag=True, help="A table instead of the rows.")
@click.option("--limit", type=WholeNumber(1), help="Stop after so many rows.")
@click.option("--worker", help="Only rows of this worker_id.")
@click.option("--rank", type=WholeNumber(0), help="Only rows of this data-parallel rank.")
@click.option(
    "--since", callback=moment_option, help="Only rows observed at or after this time (ISO 8601 or Unix ms)."
)
@click.option("--until", callback=moment_option, help="Only rows observed before this time.")
@_unverified
def cat(
    paths: tuple[str, ...],
    compact: bool,
    limit: int | None,
    worker: str | None,
    rank: int | None,
    since: int | None,
    until: int | None,
    unverified: bool,
) -> int:
    """Print the rows as they were written, one JSON document per line.

    Exit code 4 if some bytes or lines could not be used.

    \b
    Examples:
      forwardpass trace cat /tmp/dynamo-fpm | jq .event.fpm.wall_time
      forwardpass trace cat trace.jsonl.gz --compact --rank 0 --since 2026-11-30T12:25:00Z
    """
    reader = TraceReader(_find(paths), unverified=unverified)
    wanted = RowFilter(worker=worker, rank=rank, since_unix_ms=since, until_unix_ms=until)
    rows = (row for row in reader if wanted.keeps(row))
    with ending_quietly():
        _print_rows(islice(rows, limit), compact=compact)
    return _partial(reader.report)


@trace.command()
@_paths
@click.option("--roll-bytes", type=WholeNumber(1), help="Segment size to reckon with (uncompressed).")
@click.option("--max-segments", type=WholeNumber(1), help="Segments kept to reckon with.")
@_unverified
@_json
def stats(
    paths: tuple[str, ...],
    roll_bytes: int | None,
    max_segments: int | None,
    unverified: bool,
    as_json: bool,
) -> int:
    """Sum a trace up: passes, step times, tokens, queue, gaps, ranks, and what it takes on the disk.

    Step times are `wall_time`, by kind of pass; heartbeats are no passes. The last table says what each
    producer writes in the long run and how far back its files reach, with the segment size and number
    from the options, DYN_FPM_JSONL_GZ_ROLL_BYTES and DYN_FPM_MAX_SEGMENTS, or their defaults.

    Exit code 4 if some bytes or lines could not be used.

    \b
    Examples:
      forwardpass trace stats /tmp/dynamo-fpm
      forwardpass trace stats traces/ --json | jq .summary.kinds
    """
    sources = Sources()
    roll = roll_bytes or sources.value(variables.ROLL_BYTES)
    kept = max_segments or sources.value(variables.MAX_SEGMENTS)
    reader = TraceReader(_find(paths), unverified=unverified)
    summary = summarize(reader)
    capacities = _capacities(summary, reader.report, roll, kept)
    with ending_quietly():
        if as_json:
            write_json({"summary": summary, "capacity": capacities, "files": reader.report.files})
        else:
            write_lines(render_summary(summary, reader.report, capacities).split("\n"))
    return _partial(reader.report)


@trace.command()
@_paths
@_json
def verify(paths: tuple[str, ...], as_json: bool) -> int:
    """Read everything and say what is damaged, where, and how many rows are safe.

    A row is safe if the checksum of its gzip member is right (in a plain file: if it is whole). A writer
    that is at work may have just begun a member: then the newest file's end reads as torn.

    Exit code 1 if anything is damaged.

    \b
    Examples:
      forwardpass trace verify /tmp/dynamo-fpm
      forwardpass trace verify trace.jsonl.gz --json | jq '.files[].ranges'
    """
    reader = TraceReader(_find(paths))
    for _ in reader.batches():
        pass
    report = reader.report
    with ending_quietly():
        if as_json:
            write_json({"intact": report.intact, "rows": report.rows, "files": report.files})
        else:
            write_lines(render_health(report))
    return Exit.DONE if report.intact else Exit.FINDING


trace.add_command(clean)


def _find(paths: tuple[str, ...]) -> list[Path]:
    """Return the files of a trace, the configured one if none is named."""
    if "" in paths:  # a shell variable that is not set, surely not the folder this runs in
        raise ConfigError("PREFIX", "", "a prefix, a folder or a file")
    if paths:
        return find_segments(paths)
    prefix = Sources().value(variables.OUTPUT_PATH)
    try:
        return find_segments(prefix)
    except TracePathError as error:
        reason = f"no trace there; name one, or set {variables.OUTPUT_PATH.name}"
        raise TracePathError(prefix, reason) from error


def _print_rows(rows: Iterator[TraceRecord], *, compact: bool) -> None:
    terminal = sys.stdout.isatty()
    if compact:
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


def _capacities(summary: Summary, report: TraceReport, roll_bytes: int, max_segments: int) -> list[Capacity]:
    sound = report.size - sum(file.damaged_bytes for file in report.files)
    ratio = report.text_bytes / sound if sound else 1.0
    found = (
        capacity_of(each, compression_ratio=ratio, roll_bytes=roll_bytes, max_segments=max_segments)
        for each in summary.producers
    )
    return [each for each in found if each is not None]


def _partial(report: TraceReport) -> Exit:
    """Say what could not be used."""
    count = report.problem_count()
    if not count:
        return Exit.DONE
    for problem in islice(report.problems(), _SAID_PROBLEMS):
        say(printable(str(problem), 400))
    if count > _SAID_PROBLEMS:
        say(f"{count} problems in all; `forwardpass trace verify` lists them")
    return Exit.PARTIAL
