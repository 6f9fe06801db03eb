"""Knows the command that checks the files of a self-benchmark: ``bench validate``.

Exit codes: 0 nothing is wrong; 1 something is; 2 wrong use; 3 a file cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from forwardpass.artifact.read import Kind
from forwardpass.artifact.validate import FileSummary, Validation, validate
from forwardpass.cli.main import Exit
from forwardpass.cli.output import ending_quietly, say, write_json, write_lines
from forwardpass.cli.summary_view import counted
from forwardpass.cli.terminal import printable

__all__ = ["files_argument", "problem_line", "validate_command"]

LINE = 1000
"""Characters of a line that is shown; values in it may be a stranger's."""

files_argument = click.argument("files", nargs=-1, required=True, metavar="FILE...")


@click.command("validate")
@files_argument
@click.option("--strict", is_flag=True, help="Also what a strict reader of finished files asks.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def validate_command(files: tuple[str, ...], strict: bool, as_json: bool) -> int:
    """Say all that is wrong with files of a benchmark, by rule and place.

    Rank files of one run are checked together, as a merge would; merged files and sidecars each by itself,
    and a merged file also against the sidecar beside it. Gzip is read as well.

    Exit code 1 if something is wrong, 3 if a file cannot be read or is none of these.

    \b
    Examples:
      forwardpass bench validate /tmp/benchmark_results*.json --strict
      forwardpass bench validate results_merged.json --json | jq '.problems[].rule'
    """
    result = validate([Path(name) for name in files], strict=strict)
    with ending_quietly():
        if as_json:
            write_json(result)
        else:
            write_lines(_lines(result))
    for one in result.unreadable:
        say(printable(one.reason, LINE))
    if not as_json:
        for note in result.notes:
            say(printable(note, LINE))
    if result.unreadable:
        return Exit.INPUT
    return Exit.FINDING if result.total else Exit.DONE


def problem_line(text: str) -> str:
    """Return a problem as one line that a terminal may be given."""
    return printable(text, LINE)


def _lines(result: Validation) -> Iterator[str]:
    for file in result.files:
        yield printable(f"{file.file}: {_words(file)}", LINE)
    for problem in result.problems:
        yield problem_line(f"{problem.level}: {problem.text()}")
    beyond = result.total - len(result.problems)
    if beyond:
        yield f"and {counted(beyond, 'problem')} more"
    if result.files:
        yield counted(result.total, "problem") if result.total else "nothing is wrong"


def _words(file: FileSummary) -> str:
    if file.kind is Kind.PROBE:
        return "what the workers replied"
    ranks = ", ".join(map(str, file.ranks)) if isinstance(file.ranks, list) else str(file.ranks)
    groups = "no list of points" if file.groups is None else counted(file.groups, "point")
    evidence = "with a protocol" if file.protocol else "without a protocol (an older writer)"
    return f"{file.kind} file, rank {ranks}, {file.status or 'no status'}, {groups}, {evidence}"
