"""Knows the command that compares two runs of a benchmark: ``bench diff``.

Exit codes: 0 nothing differs that can be told; 1 something does; 2 wrong use; 3 a file cannot be read;
4 grids and fields were compared and times were not, because they are not the same quantity.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from forwardpass.analyze.benchmark.comparison import Comparison, compare, unlike
from forwardpass.analyze.benchmark.run import BenchRun, load_run
from forwardpass.cli.bench_diff_view import diff_lines
from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import Number
from forwardpass.cli.output import ending_quietly, say, write_json, write_lines
from forwardpass.cli.terminal import colourful, page_width
from forwardpass.errors import ConfigError

__all__ = ["diff"]


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--again-a", multiple=True, metavar="FILE", help="Another launch of what A is; may be repeated."
)
@click.option(
    "--again-b", multiple=True, metavar="FILE", help="Another launch of what B is; may be repeated."
)
@click.option(
    "--confidence",
    type=Number(50, 99.9),
    default=95,
    show_default=True,
    help="How sure an interval has to be, in percent.",
)
@click.option("--force", is_flag=True, help="Compare times that are not the same quantity all the same.")
@click.option("--points", is_flag=True, help="Every point, not only those that differ most.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def diff(
    a: str,
    b: str,
    again_a: tuple[str, ...],
    again_b: tuple[str, ...],
    confidence: float,
    force: bool,
    points: bool,
    as_json: bool,
) -> int:
    """Say how the runs A and B differ: their grids, how and what was measured, and the time of each point.

    A and B are rank files or merged ones. A launch measures a point once, so that two files give a ratio for
    each point and seldom a conclusion: give more launches of either side with --again-a and --again-b. Four
    of each are the least with which a point can be told apart at 95 %.

    Times are not compared if model, parallel sizes, prompts or another part of the identity differ (code 4):
    --force does so all the same. What else differs is named as a caveat.

    Exit code 0 if nothing differs that can be told, 1 if something does, 2 for a wrong use, 3 if a file
    cannot be read, 4 if times were not compared.

    \b
    Examples:
      forwardpass bench diff before_merged.json after_merged.json
      forwardpass bench diff a1.json b1.json --again-a a2.json --again-b b2.json
      forwardpass bench diff a.json b.json --json | jq '.timing.phases'
    """
    sides = [_launches(a, again_a, "--again-a"), _launches(b, again_b, "--again-b")]
    found = compare(*sides, force=force, level=confidence / 100)
    with ending_quietly():
        if as_json:
            write_json(_document(found, sides))
        else:
            look = page_width(sys.stdout), colourful(sys.stdout)
            write_lines(diff_lines(found, (sides[0][0], sides[1][0]), *look, every_point=points))
    if found.timing is None:
        say("times were not compared: they are not the same quantity (--force compares them all the same)")
    return _code(found)


def _document(found: Comparison, sides: Sequence[Sequence[BenchRun]]) -> dict[str, Any]:
    files = {label: [run.file for run in side] for label, side in zip("ab", sides, strict=True)}
    return {**files, "findings": found.has_findings, **msgspec.structs.asdict(found)}


def _code(found: Comparison) -> int:
    if found.timing is None:
        return Exit.PARTIAL
    return Exit.FINDING if found.has_findings else Exit.DONE


def _launches(name: str, again: Sequence[str], option: str) -> list[BenchRun]:
    """Return the launches of one side; raises :class:`ConfigError` for one that is no repetition."""
    runs = [load_run(Path(name))]
    for other in again:
        run = load_run(Path(other))
        for before in runs:
            reason = unlike(before, run)
            if reason is not None:
                raise ConfigError(option, other, f"another launch of what {before.file} is: {reason}")
        runs.append(run)
    return runs
