"""Knows the command that reckons what a trace will take: ``trace plan``.

Exit codes: 0 done; 2 wrong use; 3 the trace to measure cannot be read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from forwardpass.analyze.capacity import Plan, capacity, plan_of, rows_per_second
from forwardpass.analyze.summary import summarize
from forwardpass.cli.amounts import seconds_option
from forwardpass.cli.numbers import Number, WholeNumber
from forwardpass.cli.output import ending_quietly, write_json, write_lines
from forwardpass.cli.summary_view import counted, format_bytes, format_seconds, render_capacities
from forwardpass.cli.trace_paths import find
from forwardpass.config import variables
from forwardpass.config.settings import Sources
from forwardpass.errors import ConfigError
from forwardpass.trace.reader import TraceReader

__all__ = ["plan"]

ROW_BYTES = 710.0
COMPRESSION_RATIO = 15.0
"""Those of the traces at hand: 700 to 722 bytes, 11 to 24."""


@click.command()
@click.argument("paths", nargs=-1, metavar="[PREFIX|FOLDER|FILE]...")
@click.option("--ranks", type=WholeNumber(1), help="Ranks of one producer (measured, or 1).")
@click.option("--rate", type=Number(0, above=True), help="Passes and heartbeats a second of one rank.")
@click.option("--mode", type=click.Choice(["full", "sampled"]), help="By default DYN_FPM_MODE, or sampled.")
@click.option("--sample-interval-ms", type=WholeNumber(1), help="Interval of sampled mode.")
@click.option("--row-bytes", type=Number(1), help="Bytes of a row (measured, or 710).")
@click.option("--ratio", type=Number(1), help="Text bytes per file byte (measured, or 15).")
@click.option("--roll-bytes", type=WholeNumber(1), help="Uncompressed bytes of a segment.")
@click.option("--max-segments", type=WholeNumber(1), help="Segments kept of each producer.")
@click.option("--producers", type=WholeNumber(1), default=1, show_default=True, help="How many there are.")
@click.option("--keep", callback=seconds_option, help="Find the segments that keep so long (such as 7d).")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def plan(paths: tuple[str, ...], producers: int, keep: int | None, as_json: bool, **given: Any) -> None:
    """Reckon rows, disk and the time that is kept.

    From numbers, or measured from a trace that was recorded in full mode: then RANKS, RATE, ROW-BYTES and
    RATIO need not be given. What is not given comes from the variables or their defaults.

    Exit code 3 if the trace to measure cannot be read.

    \b
    Examples:
      forwardpass trace plan --ranks 8 --rate 50 --mode full --keep 1d
      forwardpass trace plan first --mode sampled --producers 64
    """
    found = _reckon(paths, producers, keep, given)
    with ending_quietly():
        if as_json:
            write_json(found)
        else:
            write_lines(_render(found))


class _Measured(NamedTuple):
    """What a recorded trace says; ``None`` where there is none."""

    ranks: int | None = None
    rate: float | None = None
    row_bytes: float | None = None
    ratio: float | None = None


def _reckon(paths: tuple[str, ...], producers: int, keep: int | None, given: dict[str, Any]) -> Plan:
    sources, measured = Sources(), _measure(paths) if paths else _Measured()
    mode = given["mode"] or sources.value(variables.MODE)
    interval = (given["sample_interval_ms"] or sources.value(variables.SAMPLE_INTERVAL_MS)) / 1000
    rate = given["rate"] or measured.rate
    if rate is None:
        if mode == "full":
            raise ConfigError(
                "--rate", "not given", "passes a second of one rank, or a trace to measure them from"
            )
        rate = 1 / interval  # a rank that always does something
    each = capacity(
        "each" if producers > 1 else "the producer",
        rows_per_second=rows_per_second(
            ranks=given["ranks"] or measured.ranks or 1,
            passes_per_second=rate,
            sample_interval_seconds=interval if mode == "sampled" else None,
        ),
        mean_row_bytes=given["row_bytes"] or measured.row_bytes or ROW_BYTES,
        compression_ratio=given["ratio"] or measured.ratio or COMPRESSION_RATIO,
        roll_bytes=given["roll_bytes"] or sources.value(variables.ROLL_BYTES),
        max_segments=given["max_segments"] or sources.value(variables.MAX_SEGMENTS),
    )
    return plan_of(each, producers, keep)


def _measure(paths: tuple[str, ...]) -> _Measured:
    reader = TraceReader(find(paths))
    summary = summarize(reader)
    producers = [each for each in summary.producers if each.elapsed_seconds > 0]
    if summary.sampled or not producers:
        raise ConfigError(
            "PREFIX", " ".join(paths), "a trace of full mode with some seconds of rows: a sample has no rate"
        )
    ranks = max(1, round(len(summary.streams) / len(producers)))
    rows, elapsed = sum(each.rows for each in producers), sum(each.elapsed_seconds for each in producers)
    return _Measured(
        ranks,
        rows / elapsed / ranks,
        sum(each.row_bytes for each in producers) / rows,
        reader.report.compression_ratio,
    )


def _render(found: Plan) -> list[str]:
    lines = render_capacities([found.each])
    if found.producers > 1:
        lines.append(
            f"all {found.producers}: {format_bytes(found.text_bytes_per_day)} of text a day, "
            f"{format_bytes(found.file_bytes_per_day)} on the disk; "
            f"{format_bytes(found.kept_file_bytes)} kept"
        )
    if found.keep_seconds is not None and found.segments_to_keep and found.file_bytes_to_keep:
        lines.append(
            f"to have the last {format_seconds(found.keep_seconds)} at any moment keep "
            f"{counted(found.segments_to_keep, 'segment')} of each producer "
            f"({variables.MAX_SEGMENTS.name}={found.segments_to_keep}): "
            f"{format_bytes(found.file_bytes_to_keep)} on the disk"
        )
    return lines
