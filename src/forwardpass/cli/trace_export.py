"""Knows the command that copies rows into other formats: ``trace export``.

Exit codes: 0 done; 2 wrong use, or the extra is missing; 3 nothing there, not readable or not writable; 4
some bytes or lines could not be used.
"""

from __future__ import annotations

import sys

import click

from forwardpass.cli.main import Exit
from forwardpass.cli.output import ending_quietly, say
from forwardpass.cli.summary_view import counted, format_bytes
from forwardpass.cli.trace_filter import filter_options
from forwardpass.cli.trace_paths import find, paths_argument, unverified_option
from forwardpass.cli.trace_problems import say_problems
from forwardpass.columnar.export import Exported, export_dataset, export_file, export_pipe, format_of
from forwardpass.columnar.formats import ExportFormat
from forwardpass.columnar.read import ColumnReader
from forwardpass.errors import ConfigError
from forwardpass.trace.row_filter import RowFilter

__all__ = ["export"]

_FORMATS = [form.value for form in ExportFormat]


@click.command()
@paths_argument
@click.option("--to", "target", required=True, metavar="FILE|FOLDER|-", help="What to write; - is stdout.")
@click.option("--format", "form", type=click.Choice(_FORMATS), help="By default told by the suffix.")
@click.option("--dataset", is_flag=True, help="A folder of Parquet files by namespace, component and date.")
@click.option("--force", is_flag=True, help="Replace an export that is there.")
@filter_options
@unverified_option
def export(
    paths: tuple[str, ...],
    target: str,
    form: str | None,
    dataset: bool,
    force: bool,
    wanted: RowFilter,
    unverified: bool,
) -> int:
    """Copy the rows into Parquet, Arrow, CSV or JSON lines, one flat row for each row of the trace.

    The suffix tells the format: .parquet, .arrow (.arrows for Arrow's stream), .csv, .ndjson. Units and
    meaning of each column stand in the Parquet and Arrow files. What is written has its name only when it is
    whole, and nothing that is there is overwritten without --force. Needs pip install 'forwardpass[analyze]'.

    Exit code 4 if some bytes or lines could not be used.

    \b
    Examples:
      forwardpass trace export /var/log/fpm --to fpm.parquet
      forwardpass trace export /var/log/fpm --to lake --dataset --since 2026-11-30T00:00:00Z
      forwardpass trace export /var/log/fpm --to - --format csv --rank 5 | head
    """
    chosen = _format(target, form, dataset=dataset)
    reader = ColumnReader(find(paths), unverified=unverified, wanted=wanted)
    done = None
    if target == "-":
        with ending_quietly():
            sys.stdout.flush()
            export_pipe(reader.batches(), sys.stdout.buffer, chosen)
    elif dataset:
        done = export_dataset(reader.batches(), target, force=force)
    else:
        done = export_file(reader.batches(), target, chosen, force=force)
    status: Exit = say_problems(reader.report.problems(), reader.report.problem_count())
    if done is not None:
        say(_words(done))
    return status


def _format(target: str, form: str | None, *, dataset: bool) -> ExportFormat:
    """Return the format that is wanted; raises :class:`~forwardpass.errors.ConfigError` if none can be."""
    if not target:
        raise ConfigError("--to", target, "a file, a folder (--dataset) or - for stdout")
    if dataset:
        if target == "-" or form not in (None, ExportFormat.PARQUET):
            raise ConfigError("--dataset", form or target, "a folder, and the format parquet")
        return ExportFormat.PARQUET
    chosen = ExportFormat(form) if form else format_of(target)
    if chosen is None:
        raise ConfigError("--to", target, "a suffix .parquet, .arrow, .arrows, .csv or .ndjson, or --format")
    if target == "-" and chosen is ExportFormat.PARQUET:
        raise ConfigError("--to", target, "a file for parquet; stdout takes csv, ndjson and arrow")
    return chosen


def _words(done: Exported) -> str:
    each = f", {done.size / done.rows:.1f} bytes each" if done.rows else ""
    return f"{counted(done.rows, 'row')} in {counted(done.files, 'file')} of {format_bytes(done.size)}{each}"
