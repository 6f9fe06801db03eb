"""Knows the command that plans a self-benchmark without an engine: ``bench plan``.

Exit codes: 0 done; 1 a phase has no point; 2 wrong use or setting; 3 a file cannot be read, or a point of
it does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from forwardpass.bench.beyond import Beyond, beyond
from forwardpass.bench.cost import GridCost, PassLoad, cost_of
from forwardpass.bench.limits import CapacityEnvelope
from forwardpass.bench.manifest import file_of
from forwardpass.bench.plan import Plan, plan_grid
from forwardpass.bench.points import Phase, Point
from forwardpass.cli.bench_limits import ENGINES, Subject, choose_subject
from forwardpass.cli.bench_options import PLAN_ROWS, bench_options
from forwardpass.cli.bench_picture import decode_picture, every_point, prefill_picture, shape_tables
from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import Number
from forwardpass.cli.output import aligned, ending_quietly, say, write_json, write_lines
from forwardpass.cli.summary_view import counted, format_seconds
from forwardpass.cli.terminal import printable
from forwardpass.columnar.new_output import new_file

__all__ = ["plan"]


@click.command()
@click.option("--limits", metavar="FILE", help="Plan for the layout and capacity in a JSON file.")
@click.option("--like", metavar="ARTIFACT", help="Plan what an artifact measured, for its engine.")
@click.option("--engine", type=click.Choice(ENGINES), help="Plan for this engine with its defaults.")
@bench_options(PLAN_ROWS)
@click.option(
    "--points", "points_path", metavar="FILE", help="Also write a points file that gives these points."
)
@click.option("--seconds-per-pass", type=Number(0, above=True), help="Reckon with so long for a pass.")
@click.option("--explain", is_flag=True, help="Say why the next larger points are not in the grid.")
@click.option(
    "--list", "as_list", is_flag=True, help="One line for each point instead of tables and pictures."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def plan(
    limits: str | None,
    like: str | None,
    engine: str | None,
    flags: Mapping[str, str],
    points_path: str | None,
    seconds_per_pass: float | None,
    explain: bool,
    as_list: bool,
    as_json: bool,
) -> int:
    """Show which points a self-benchmark would measure, and what that takes.

    No engine is needed: its limits come from a file, from the artifact of a benchmark that it ran, or from
    the simulated engine, whose defaults are used if nothing is said. Options that are not given come from
    the variables (with --like: from the artifact), or their defaults; without a mode both phases are
    planned. The digest is the one that artifacts have.

    The cost is that of the points and replicas themselves: computing prefixes and contexts for real, and
    the warm-up, come on top.

    Exit code 1 if a phase has no point, 3 if a file cannot be read or a point of it does not fit.

    \b
    Examples:
      forwardpass bench plan --engine mock --benchmark-mode decode
      forwardpass bench plan --limits engine.json --explain
      forwardpass bench plan --like benchmark_results.json --points points.json
    """
    subject = choose_subject(limits, like, engine, flags)
    found = plan_grid(subject.config, subject.limits.layout, subject.limits.capacity)
    ends = _ends(subject, found) if explain else None
    cost = cost_of(found.grid.points, _seconds(subject, seconds_per_pass))
    if points_path is not None:
        _write_points(points_path, found)
    with ending_quietly():
        if as_json:
            write_json(_document(subject, found, cost, ends))
        else:
            write_lines(_page(subject, found, cost, ends, as_list=as_list))
    for phase in found.grid.missing_phases:
        say(f"no point of {phase.value} fits: a result without any would not be valid")
    return Exit.FINDING if found.grid.missing_phases else Exit.DONE


def _seconds(subject: Subject, each: float | None) -> Callable[[Point, PassLoad], float] | None:
    if each is None:
        return subject.seconds

    def constant(point: Point, load: PassLoad) -> float:
        return each

    return constant


def _ends(subject: Subject, found: Plan) -> list[Beyond]:
    """Return why the grid ends; explicit points end where their file does."""
    if found.explicit:
        return []
    return beyond(
        subject.config.mode.phases,
        found.grid.points,
        subject.limits.layout,
        subject.limits.capacity,
        max_batch_size=subject.config.max_batch_size,
    )


def _write_points(path: str, found: Plan) -> None:
    text = msgspec.json.format(msgspec.json.encode(file_of(found.grid.points)), indent=2)
    with new_file(Path(path)) as file:
        file.write(text + b"\n")


def _document(subject: Subject, found: Plan, cost: GridCost, ends: list[Beyond] | None) -> dict[str, Any]:
    grid = found.grid
    document: dict[str, Any] = {
        "mode": subject.config.mode.value,
        "explicit": found.explicit,
        "grid_digest": grid.digest,
        "artifact_grid_digest": subject.digest,
        "expected_points": grid.expected_points,
        "replicas": len(grid.points) - grid.expected_points,
        "missing_phases": grid.missing_phases,
        "dropped_imbalanced": found.dropped_imbalanced,
        "limits": subject.limits,
        "cost": cost,
        "points": grid.points,
    }
    return document if ends is None else {**document, "beyond": ends}


def _page(
    subject: Subject, found: Plan, cost: GridCost, ends: list[Beyond] | None, *, as_list: bool
) -> list[str]:
    points = found.grid.points
    lines = _head(subject, found, cost)
    if as_list:
        lines += ["", *every_point(points)]
    else:
        for part in (shape_tables(points), prefill_picture(points), decode_picture(points)):
            lines += ["", *part] if part else []
    if ends is not None:
        lines += ["", *_explained(ends, found.explicit)]
    return lines


def _head(subject: Subject, found: Plan, cost: GridCost) -> list[str]:
    grid = found.grid
    real = [point for point in grid.points if not point.is_replica]
    prefill = sum(1 for point in real if point.point_type is Phase.PREFILL)
    replicas = len(grid.points) - len(real)
    lines = [
        f"{counted(len(real), 'point')} for {printable(subject.name)}: {prefill:,} of prefill, "
        f"{len(real) - prefill:,} of decode; {counted(replicas, 'replica')} first",
        _limits(subject.limits.capacity, subject.limits.layout.block_size),
        f"digest: {grid.digest}{_compared(subject.digest, grid.digest)}",
        f"cost: {counted(cost.passes, 'pass', 'passes')}, {cost.computed_tokens:,} tokens computed, "
        f"{cost.read_tokens:,} read{_time(cost)}",
    ]
    if found.dropped_imbalanced:
        lines.append(
            f"left out: {counted(found.dropped_imbalanced, 'point')} whose requests differ "
            "(--benchmark-collect-imbalanced)"
        )
    return lines


def _limits(capacity: CapacityEnvelope, block_size: int) -> str:
    return (
        f"limits: {capacity.max_num_scheduled_tokens:,} tokens and {capacity.max_num_running_reqs:,} "
        f"requests a pass, {capacity.max_model_len:,} tokens a request, "
        f"{capacity.usable_blocks_with_watermark:,} blocks of {block_size} tokens"
    )


def _compared(theirs: str | None, ours: str) -> str:
    if theirs is None:
        return ""
    return ", the artifact's" if theirs == ours else f"; the artifact's is {printable(theirs, 64)}"


def _time(cost: GridCost) -> str:
    return "" if cost.seconds is None else f"; about {format_seconds(cost.seconds)}"


def _explained(ends: list[Beyond], explicit: bool) -> list[str]:
    if explicit:
        return ["The points come from a file: all of them fit, and nothing else was looked at."]
    rows = [("next", "candidate", "why not")]
    rows += [(f"{one.point.point_type.value}, {one.axis}", _candidate(one.point), one.why) for one in ends]
    return ["why the grid ends:", *(f"  {line}" for line in aligned(rows, left=3))]


def _candidate(point: Point) -> str:
    requests = counted(point.batch_size, "request")
    if point.point_type is Phase.DECODE:
        return f"{requests}, {counted(point.total_kv_read_tokens, 'token')} of context"
    read = f", {point.total_kv_read_tokens:,} read" if point.total_kv_read_tokens else ""
    return f"{requests}, {counted(point.total_prefill_tokens, 'token')}{read}"
