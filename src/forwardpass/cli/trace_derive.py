"""Knows the command that computes quantities from rows: ``trace derive``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import click
import msgspec

from forwardpass.analyze.derived import derive
from forwardpass.analyze.iterations import IterationExport
from forwardpass.analyze.ranks import (
    DEFAULT_MAX_SKEW_MS,
    RankGroup,
    WorkerName,
    group_ranks,
    ranks_of_workers,
    spread_of,
    worker_of,
)
from forwardpass.cli.numbers import WholeNumber
from forwardpass.cli.output import ending_quietly, say, write_bytes
from forwardpass.cli.summary_view import counted
from forwardpass.cli.terminal import json_for_terminal
from forwardpass.cli.trace_filter import filter_options
from forwardpass.cli.trace_paths import find, paths_argument, unverified_option
from forwardpass.cli.trace_problems import say_problems
from forwardpass.errors import ConfigError
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.record import TraceRecord
from forwardpass.trace.row_filter import RowFilter

__all__ = ["derive_command"]

_BLOCK = 256


@click.command("derive")
@paths_argument
@click.option("--by-rank-group", is_flag=True, help="A line for each group of ranks: skew and imbalance.")
@click.option("--iterations", is_flag=True, help="One JSON document for AISimulate: iterations of ranks.")
@click.option(
    "--max-skew-ms",
    type=WholeNumber(0),
    default=DEFAULT_MAX_SKEW_MS,
    show_default=True,
    help="Longest time between rows that are grouped.",
)
@click.option("--limit", type=WholeNumber(1), help="Stop after so many lines or iterations.")
@filter_options
@unverified_option
def derive_command(
    paths: tuple[str, ...],
    by_rank_group: bool,
    iterations: bool,
    max_skew_ms: int,
    limit: int | None,
    wanted: RowFilter,
    unverified: bool,
) -> int:
    """Compute quantities from the rows, one JSON line each: kind, rates, means, deviations, queue.

    What a row cannot say is null. Ranks are grouped by the time at which their rows were observed, never by
    counter; each group says how far apart its rows are. The files are read twice, because the ranks of a
    worker have to be known first. --iterations leaves out what AISimulate would refuse, and says how much.

    Exit code 4 if some bytes or lines could not be used.

    \b
    Examples:
      forwardpass trace derive /var/log/fpm | jq 'select(.kind == "decode") | .tokens_per_second'
      forwardpass trace derive /var/log/fpm --by-rank-group | jq .tokens_imbalance
      forwardpass trace derive /var/log/fpm --iterations > iterations.json
    """
    if by_rank_group and iterations:
        raise ConfigError("--iterations", "--by-rank-group", "one of them")
    files = find(paths)
    ranks = ranks_of_workers(_rows(TraceReader(files, unverified=unverified), wanted))
    reader = TraceReader(files, unverified=unverified)
    rows = _rows(reader, wanted)
    with ending_quietly():
        if iterations:
            _write_iterations(IterationExport(ranks, max_skew_ms=max_skew_ms), rows, limit)
        elif by_rank_group:
            groups = group_ranks(rows, ranks=ranks, max_skew_ms=max_skew_ms)
            _write_lines(map(_group_line, islice(groups, limit)))
        else:
            _write_lines(_row_line(row, ranks) for row in islice(rows, limit))
    return say_problems(reader.report.problems(), reader.report.problem_count())


def _rows(reader: TraceReader, wanted: RowFilter) -> Iterator[TraceRecord]:
    return (row for row in reader if wanted.keeps(row))


def _row_line(row: TraceRecord, ranks: dict[WorkerName, frozenset[int]]) -> dict[str, Any]:
    metrics, worker = row.metrics, worker_of(row)
    return {
        "observed_at_unix_ms": row.observed_at_unix_ms,
        "producer_id": row.source.producer_id,
        "worker_id": metrics.worker_id,
        "dp_rank": metrics.dp_rank,
        "counter_id": metrics.counter_id,
        "wall_time": metrics.wall_time,
        **msgspec.structs.asdict(derive(metrics, data_parallel=len(ranks.get(worker, ())) > 1)),
    }


def _group_line(group: RankGroup) -> dict[str, Any]:
    return {
        "observed_at_unix_ms": min(row.observed_at_unix_ms for row in group.rows),
        "worker_id": group.worker.worker_id,
        "counter_ids": {str(row.metrics.dp_rank): row.metrics.counter_id for row in group.rows},
        "missing_ranks": group.missing,
        **msgspec.structs.asdict(spread_of(group)),
    }


def _write_lines(documents: Iterator[dict[str, Any]]) -> None:
    while block := list(islice(documents, _BLOCK)):
        write_bytes(map(_json, block))


def _json(value: Any) -> bytes:
    """Return one line of JSON; what strangers wrote into a message does not drive a terminal."""
    return json_for_terminal(msgspec.json.encode(value).decode()).encode()


def _write_iterations(export: IterationExport, rows: Iterable[TraceRecord], limit: int | None) -> None:
    """Write one JSON document, an iteration on each line, however long."""
    write_bytes([b"["])
    before = b" "
    for iteration in islice(export.iterations(rows), limit):
        write_bytes([before + _json(iteration)])
        before = b","
    write_bytes([b"]"])
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(export.left_out.items()))
    words = f"; left out: {reasons}" if reasons else ""
    say(f"{counted(export.exported, 'iteration')}{words}")
