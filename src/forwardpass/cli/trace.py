"""Knows the commands that look into trace files: ``trace ls``, ``cat``, ``stats`` and ``verify``.

Exit codes: 0 done; 1 ``verify`` found damage; 2 wrong use; 3 nothing there or not readable; 4 ``cat`` and
``stats`` could not use some bytes or lines, and said so on stderr.
"""

from __future__ import annotations

from itertools import islice

import click

from forwardpass.analyze.capacity import Capacity, capacity_of
from forwardpass.analyze.summary import Summary, summarize
from forwardpass.analyze.timing import NOT_SAID, scopes_of
from forwardpass.cli.engine_option import named_engine
from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import WholeNumber
from forwardpass.cli.output import ending_quietly, say, write_json, write_lines
from forwardpass.cli.summary_view import render_summary
from forwardpass.cli.trace_cat import follow_rows, print_rows
from forwardpass.cli.trace_derive import derive_command
from forwardpass.cli.trace_export import export
from forwardpass.cli.trace_filter import filter_options, moment_option
from forwardpass.cli.trace_gaps import gaps
from forwardpass.cli.trace_list import count_rows, list_file, render_list
from forwardpass.cli.trace_merge import merge
from forwardpass.cli.trace_paths import find, paths_argument, unverified_option
from forwardpass.cli.trace_plan import plan
from forwardpass.cli.trace_problems import say_problems
from forwardpass.cli.trace_prune import prune
from forwardpass.cli.trace_repair import repair_command
from forwardpass.cli.trace_sql import sql
from forwardpass.cli.trace_verify_view import render_health
from forwardpass.config import variables
from forwardpass.config.settings import Sources
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.report import TraceReport
from forwardpass.trace.row_filter import RowFilter

__all__ = ["trace"]

_json = click.option("--json", "as_json", is_flag=True, help="One JSON document.")


@click.group()
def trace() -> None:
    """List, print, sum up, verify and repair trace files.

    Traces are named by the prefix they were recorded with, by folder, or by file (any name; gzip or plain
    JSON lines, told apart by content). Without one: DYN_FPM_OUTPUT_PATH, or /tmp/dynamo-fpm.

    Exit code 3 if nothing is found there or it cannot be read.

    \b
    Examples:
      forwardpass trace stats /tmp/dynamo-fpm
      forwardpass trace verify /var/log/fpm
    """


@trace.command()
@paths_argument
@click.option("--count", is_flag=True, help="Read everything and also give rows, members and health.")
@click.option("--since", callback=moment_option, help="Only files with rows observed at or after this time.")
@click.option("--until", callback=moment_option, help="Only files with rows observed before this time.")
@_json
def ls(paths: tuple[str, ...], count: bool, since: int | None, until: int | None, as_json: bool) -> None:
    """List the files: producer, size, first and last row.

    A file whose first or last row cannot be read may hold any time, and is listed.

    Exit code 3 if there are none.

    \b
    Examples:
      forwardpass trace ls /tmp/dynamo-fpm
      forwardpass trace ls traces/ --count --json
      forwardpass trace ls /var/log/fpm --since 2026-11-30T14:02:00Z --until 2026-11-30T14:05:00Z
    """
    found = (count_rows(path) if count else list_file(path) for path in find(paths))
    wanted = RowFilter(since_unix_ms=since, until_unix_ms=until)
    files = [
        file
        for file in found
        if file is not None and wanted.may_be_in(file.first_observed_unix_ms, file.last_observed_unix_ms)
    ]
    with ending_quietly():
        if as_json:
            write_json(files)
        else:
            write_lines(render_list(files))


@trace.command()
@paths_argument
@click.option("--compact", is_flag=True, help="A table instead of the rows.")
@click.option("--limit", type=WholeNumber(1), help="Stop after so many rows.")
@filter_options
@click.option("--follow", "-f", is_flag=True, help="Then show what is written, across rolls, until Ctrl-C.")
@unverified_option
def cat(
    paths: tuple[str, ...],
    compact: bool,
    limit: int | None,
    wanted: RowFilter,
    follow: bool,
    unverified: bool,
) -> int:
    """Print the rows as they were written, one JSON document per line.

    With --follow a trace that is not there yet is waited for; rows come when their gzip member is whole,
    about a second after the pass.

    Exit code 4 if some bytes or lines could not be used.

    \b
    Examples:
      forwardpass trace cat /tmp/dynamo-fpm | jq .event.fpm.wall_time
      forwardpass trace cat trace.jsonl.gz --compact --rank 0 --since 2026-11-30T12:25:00Z
    """
    if follow:
        with ending_quietly():
            return follow_rows(paths, wanted, limit=limit, compact=compact)
    reader = TraceReader(find(paths), unverified=unverified)
    rows = (row for row in reader if wanted.keeps(row))
    with ending_quietly():
        print_rows(islice(rows, limit), compact=compact)
    return say_problems(reader.report.problems(), reader.report.problem_count())


@trace.command()
@paths_argument
@filter_options
@click.option("--roll-bytes", type=WholeNumber(1), help="Segment size to reckon with (uncompressed).")
@click.option("--max-segments", type=WholeNumber(1), help="Segments kept to reckon with.")
@click.option("--engine", metavar="NAME", help="Engine of the rows of which no ledger says it (vllm, …).")
@unverified_option
@_json
def stats(
    paths: tuple[str, ...],
    wanted: RowFilter,
    engine: str | None,
    roll_bytes: int | None,
    max_segments: int | None,
    unverified: bool,
    as_json: bool,
) -> int:
    """Sum a trace up: passes, step times, tokens, queue, gaps, ranks, and what it takes on the disk.

    Step times are `wall_time`, by kind of pass; heartbeats are no passes. What they measure differs by
    engine: the ledger says it where the recorder knew, a row's own field `timing_scope` wins over that, and
    --engine says it of all others. Times of different meanings are never put together: each has lines of
    its own. Those of more than four million passes of a kind are kept in the system's folder for temporary
    files.

    The last table says what each producer writes in the long run and how far back its files reach, with the
    segment size and number from the options, DYN_FPM_JSONL_GZ_ROLL_BYTES and DYN_FPM_MAX_SEGMENTS, or their
    defaults; it is left out where only some rows are looked at.

    Exit code 4 if some bytes or lines could not be used.

    \b
    Examples:
      forwardpass trace stats /tmp/dynamo-fpm
      forwardpass trace stats traces/ --json | jq .summary.kinds
      forwardpass trace stats /var/log/fpm --rank 5 --since 2026-11-30T14:02:00Z --until 2026-11-30T14:05:00Z
    """
    source = named_engine(engine)
    sources = Sources()
    roll = roll_bytes or sources.value(variables.ROLL_BYTES)
    kept = max_segments or sources.value(variables.MAX_SEGMENTS)
    reader = TraceReader(find(paths), unverified=unverified)
    scopes = scopes_of(reader.files, source.wall_time.value if source is not None else NOT_SAID)
    summary = summarize((row for row in reader if wanted.keeps(row)), scopes)
    capacities = _capacities(summary, reader.report, roll, kept) if wanted.keeps_all else []
    if not summary.rows and reader.report.rows:
        say(f"none of the {reader.report.rows} rows is what was asked for")
    with ending_quietly():
        if as_json:
            write_json({"summary": summary, "capacity": capacities, "files": reader.report.files})
        else:
            write_lines(render_summary(summary, reader.report, capacities).split("\n"))
    return say_problems(reader.report.problems(), reader.report.problem_count())


@trace.command()
@paths_argument
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
    reader = TraceReader(find(paths))
    for _ in reader.batches():
        pass
    report = reader.report
    with ending_quietly():
        if as_json:
            write_json({"intact": report.intact, "rows": report.rows, "files": report.files})
        else:
            write_lines(render_health(report))
    return Exit.DONE if report.intact else Exit.FINDING


trace.add_command(gaps)
trace.add_command(prune)
trace.add_command(export)
trace.add_command(sql)
trace.add_command(derive_command)
trace.add_command(merge)
trace.add_command(plan)
trace.add_command(repair_command)


def _capacities(summary: Summary, report: TraceReport, roll_bytes: int, max_segments: int) -> list[Capacity]:
    compressed = report.compression_ratio  # looks at every file
    found = (
        capacity_of(each, compression_ratio=compressed, roll_bytes=roll_bytes, max_segments=max_segments)
        for each in summary.producers
    )
    return [each for each in found if each is not None]
