"""Knows the command that writes damaged traces anew: ``trace repair``.

Exit codes: 0 done, also if rows were lost (it says so); 2 wrong use; 3 nothing there, not readable, or not
writable.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from forwardpass.cli.output import aligned, ending_quietly, say, write_json, write_lines
from forwardpass.cli.summary_view import counted, format_bytes, format_count
from forwardpass.cli.terminal import printable
from forwardpass.cli.trace_paths import find, paths_argument, unverified_option
from forwardpass.trace.repair import RepairedFile, repair

__all__ = ["repair_command"]


@click.command("repair")
@paths_argument
@click.option("--output", "-o", required=True, metavar="FOLDER", help="Where the new files go.")
@unverified_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def repair_command(paths: tuple[str, ...], output: str, unverified: bool, as_json: bool) -> None:
    """Write new files with every row that is sure.

    The new files have the old names. Any program reads them, also those that refuse a file with a torn end
    or lose what follows a damaged place. The old files are not touched, nothing is overwritten, and no row
    is made up: what is damaged is left out and said.

    Exit code 3 if a file cannot be read or written, or is there already.

    \b
    Examples:
      forwardpass trace repair /var/log/fpm --output /tmp/sound
      forwardpass trace repair trace.jsonl.gz -o sound --json | jq '.files[].source.problems'
    """
    done = list(repair(find(paths), output, unverified=unverified))
    with ending_quietly():
        if as_json:
            write_json({"rows": sum(file.rows for file in done), "files": done})
        else:
            write_lines(_table(done))
    say(_words(done, unverified=unverified))


def _table(done: Sequence[RepairedFile]) -> list[str]:
    rows = [
        (
            printable(file.source.path),
            "copied" if file.lossless else "repaired" if file.target else "nothing left",
            format_count(file.rows),
            format_bytes(file.source.damaged_bytes),
            format_count(sum(file.source.problem_counts.values())),
        )
        for file in done
    ]
    return aligned([("file", "", "rows", "damaged", "problems"), *rows], left=2)


def _words(done: Sequence[RepairedFile], *, unverified: bool) -> str:
    rows = counted(sum(file.rows for file in done), "row")
    damaged = [file for file in done if not file.lossless]
    if not damaged:
        return f"{rows} in new files; nothing was damaged"
    left_out = 0 if unverified else sum(file.source.unverified_rows for file in done)
    words = f"{rows} in new files; {counted(len(damaged), 'file')} had damage"
    if left_out:
        words += f"; {format_count(left_out)} rows of torn members left out (--unverified takes them)"
    return words
