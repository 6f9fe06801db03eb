"""Knows the command that shows a benchmark's file: ``bench show``.

Exit codes: 0 shown, and the run is complete; 1 shown, and points are missing or something could not be read;
2 wrong use, or a library that is missing; 3 the file cannot be read, or a page cannot be written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from forwardpass.analyze.benchmark.overview import Overview, overview
from forwardpass.analyze.benchmark.run import BenchRun, MeasuredPoint, load_run
from forwardpass.analyze.benchmark.spread import spread
from forwardpass.analyze.benchmark.surface import Surface, surfaces
from forwardpass.atomic import write_atomically
from forwardpass.cli.bench_show_view import show_lines
from forwardpass.cli.main import Exit
from forwardpass.cli.output import ending_quietly, say, write_json, write_lines
from forwardpass.cli.terminal import colourful, page_width, printable
from forwardpass.errors import ArtifactPathError

__all__ = ["picture_path", "show", "time_maps"]

_PNG = b"\x89PNG"
_HTML = b"<!doctype html>"


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--points", is_flag=True, help="Also a line for each point, and for each that was skipped.")
@click.option("--png", metavar="FILE", help="Write the maps as a picture (needs forwardpass[plot]).")
@click.option("--html", metavar="FILE", help="Write everything as one page that needs no network or script.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def show(file: str, points: bool, png: str | None, html: str | None, as_json: bool) -> int:
    """Show what a benchmark measured: maps of latency, how sure they are, and what was measured.

    FILE is a rank's file or a merged one, plain or gzip, of this package or of Dynamo. Prefills are shown by
    prompt tokens and requests, for each range of tokens that are read; decodes by requests and mean context.
    Each place has the time of the slowest rank; where several points share one, of the slowest point (+).

    What the file claims is shown as it stands: `bench validate` checks it.

    Exit code 1 if the run is not complete and valid, or parts of the file could not be read, 3 if the file
    cannot be read at all or a page not be written.

    \b
    Examples:
      forwardpass bench show /tmp/benchmark_results_merged.json
      forwardpass bench show results.json --html results.html --png results.png
      forwardpass bench show results.json --json | jq '.overview.noise'
    """
    run = load_run(Path(file))
    view, maps = overview(run), time_maps(run)
    if html is not None:
        from forwardpass.cli.bench_page import page

        _write(html, file, _HTML, lambda: page(run, view, maps).encode())
    if png is not None:
        from forwardpass.cli.bench_chart import chart

        _write(png, file, _PNG, lambda: chart(run, maps))
    with ending_quietly():
        if as_json:
            write_json(_document(run, view, maps))
        else:
            look = page_width(sys.stdout), colourful(sys.stdout)
            write_lines(show_lines(run, view, maps, *look, every_point=points))
    return Exit.DONE if run.is_whole else Exit.FINDING


def time_maps(run: BenchRun) -> list[Surface]:
    """Return the maps of what the slowest rank of each point took, in seconds."""
    return surfaces(run.points, run.graphs, lambda point: point.wall_time)


def picture_path(name: str, source: str, begins: bytes) -> Path:
    """Return where a page or picture goes; raises :class:`ArtifactPathError` for a file that is something
    else, such as the one that is shown.
    """
    path = Path(name)
    try:
        with path.open("rb") as there:
            same_kind = there.read(len(begins)).lower() == begins.lower()
    except FileNotFoundError:
        return path
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArtifactPathError(name, f"cannot be used: {reason}") from error
    if not same_kind or path.resolve() == Path(source).resolve():
        raise ArtifactPathError(name, "is there already and is something else; name another file")
    return path


def _write(name: str, source: str, begins: bytes, make: Callable[[], bytes]) -> None:
    path = picture_path(name, source, begins)
    size = write_atomically(path, [make()])
    say(f"wrote {printable(str(path), 1000)}, {size:,} bytes")


def _document(run: BenchRun, view: Overview, maps: list[Surface]) -> dict[str, Any]:
    """Return everything as a program takes it. What the file says of its engine stands as it is there."""
    names = ("timing", "dp", "config", "limits", "measurement_protocol", "engine", "kvwarm", "cudagraph")
    return {
        "overview": view,
        **{name: run.head[name] for name in names if name in run.head},
        "workers": run.workers,
        "maps": maps,
        "points": [_point(point) for point in run.points],
        "skipped_points": run.skipped,
    }


def _point(point: MeasuredPoint) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(point)
    for rank, time in zip(row["ranks"], point.ranks, strict=True):
        rank["spread"] = spread(time.samples)
    return row
