"""Knows the command that merges the files of a benchmark's ranks: ``bench merge``.

Exit codes: 0 merged; 1 the ranks do not merge; 2 wrong use; 3 a file cannot be read or written.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from forwardpass.artifact.blocks import Status
from forwardpass.artifact.findings import Problem
from forwardpass.artifact.merge import Merge, merge_run, reference_order
from forwardpass.artifact.rules import Level
from forwardpass.artifact.run import PathSource, Run, examine
from forwardpass.cli.bench_validate import files_argument, problem_line
from forwardpass.cli.main import Exit
from forwardpass.cli.output import ending_quietly, say, write_json, write_lines
from forwardpass.cli.summary_view import counted
from forwardpass.cli.terminal import printable
from forwardpass.errors import ArtifactPathError

__all__ = ["merge"]

_LOOKED_AT = 1 << 20
_MERGED = re.compile(rb'"artifact_type"\s*:\s*"merged"')


@click.command()
@files_argument
@click.option("--output", "-o", metavar="FILE", help="The merged file; else named after the lowest rank's.")
@click.option("--reference", is_flag=True, help="Only the first problem, in the order of Dynamo's merge.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def merge(files: tuple[str, ...], output: str | None, reference: bool, as_json: bool) -> int:
    """Merge the files of one run's ranks into one, or say all that stands in the way.

    The order of the files does not matter. An earlier merged file of that name is replaced, and a sidecar
    with workers' replies of an earlier run removed; where ranks do not merge nothing is touched.

    Exit code 1 if they do not merge, 3 if a file cannot be read or written.

    \b
    Examples:
      forwardpass bench merge /tmp/benchmark_results.json /tmp/benchmark_results_dp1.json
      forwardpass bench merge results*.json --output /tmp/merged.json --json
    """
    paths = [Path(name) for name in dict.fromkeys(files)]
    run = examine([PathSource(path) for path in paths])
    problems = reference_order(run.findings.of(Level.MERGE), run.reference.name)
    if problems:
        return _refused(problems[:1] if reference else problems, run, as_json)
    merged = merge_run(run, None if output is None else Path(output))
    _refuse_other_files(merged.output)
    size = merged.write()
    for rank, error in merged.capture_errors.items():
        say(printable(f"the engine of rank {rank} was not compared: {error}", 1000))
    with ending_quietly():
        if as_json:
            write_json(_document(merged, size))
        else:
            ranks = ", ".join(map(str, merged.ranks))
            part = "; the run was cut short" if merged.status is Status.PARTIAL else ""
            words = f"rank {ranks} merged into {merged.output}, {counted(size, 'byte')}{part}"
            write_lines([printable(words, 1000)])
    return Exit.DONE


def _refused(problems: list[Problem], run: Run, as_json: bool) -> int:
    with ending_quietly():
        if as_json:
            write_json({"merged": None, "problems": problems, "total": run.findings.total})
        else:
            write_lines(problem_line(problem.text()) for problem in problems)
            write_lines([f"the ranks do not merge: {counted(len(problems), 'problem')}; nothing was written"])
    return Exit.FINDING


def _document(merged: Merge, size: int) -> dict[str, Any]:
    return {
        "merged": str(merged.output),
        "bytes": size,
        "status": merged.status,
        "ranks": merged.ranks,
        "capture_errors": merged.capture_errors,
        "problems": [],
        "total": 0,
    }


def _refuse_other_files(output: Path) -> None:
    """Raise for a file that is there and is no merged one: it would be lost."""
    try:
        with output.open("rb") as file:
            is_merged = _MERGED.search(file.read(_LOOKED_AT)) is not None
    except FileNotFoundError:
        return
    except OSError as error:
        raise ArtifactPathError(str(output), f"cannot be used: {error.strerror}") from error
    if not is_merged:
        raise ArtifactPathError(str(output), "is there already and is no merged file; name another one")
