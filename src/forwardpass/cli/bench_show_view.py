"""Knows how a run looks in a terminal: facts in words, maps, and on request a line for each point."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence

from forwardpass.analyze.benchmark.overview import Overview
from forwardpass.analyze.benchmark.run import BenchRun, MeasuredPoint, RankTime
from forwardpass.analyze.benchmark.spread import spread
from forwardpass.analyze.benchmark.surface import Surface
from forwardpass.cli.bench_facts import facts, percent, point_words
from forwardpass.cli.heat_map import LETTERS, TIME_COLOURS, axes_words, heat_lines, time_scale
from forwardpass.cli.output import aligned
from forwardpass.cli.terminal import printable

__all__ = [
    "digits",
    "fact_lines",
    "has_shared_places",
    "show_lines",
    "table_lines",
    "time_texts",
    "time_unit",
]

LINE = 2000
"""Characters of a text of the file that are shown."""
MOST_SKIPPED = 20


def show_lines(
    run: BenchRun,
    view: Overview,
    maps: Sequence[Surface],
    width: int,
    colours: bool,
    *,
    every_point: bool = False,
) -> Iterator[str]:
    """Yield the lines of a run, of at most ``width`` columns where the tables allow."""
    ranks = ", ".join(map(str, view.ranks[:16])) + (" …" if len(view.ranks) > 16 else "")
    yield printable(f"{run.file}: {run.kind} file{f', passes of rank {ranks}' if ranks else ''}", LINE)
    yield ""
    yield from fact_lines(facts(run, view), width)
    for surface in maps:
        yield ""
        yield from _map(surface, width, colours)
    yield from _skipped(run, every_point)
    if every_point and run.points:
        yield from ("", "points", *_points(run.points))


def has_shared_places(surface: Surface) -> bool:
    """Say whether several points share a place of a map."""
    cells = (cell for panel in surface.panels for row in panel.cells for cell in row)
    return any(cell is not None and len(cell.points) > 1 for cell in cells)


def fact_lines(pairs: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield facts with their labels, broken to ``width``; whatever a terminal may obey is shown, not sent."""
    pairs = list(pairs)
    margin = max((len(label) for label, _ in pairs), default=0) + 2
    last = None
    for label, text in pairs:
        lead = "" if label == last else label
        last = label
        harmless = printable(text, LINE) + (" …" if len(text) > LINE else "")
        lines = textwrap.wrap(harmless, max(20, width - margin), break_on_hyphens=False) or [""]
        yield f"{lead.ljust(margin)}{lines[0]}".rstrip()
        yield from (f"{' ' * margin}{line}" for line in lines[1:])


def table_lines(rows: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """Return an indented table of harmless text."""
    return [f"  {line}" for line in aligned([[printable(cell) for cell in row] for row in rows], left=left)]


def time_unit(most: float) -> tuple[str, float]:
    """Return the unit in which times of up to ``most`` seconds are read well, and the factor to it."""
    if most < 1e-3:
        return "us", 1e6
    return ("ms", 1e3) if most < 10 else ("s", 1.0)


def time_texts(surface: Surface) -> tuple[str, Callable[[float], str]]:
    """Return the unit of a map of times, and how seconds are written in it."""
    unit, factor = time_unit(surface.most)
    return unit, lambda seconds: digits(seconds * factor)


def _map(surface: Surface, width: int, colours: bool) -> Iterator[str]:
    unit, text = time_texts(surface)
    words = f"{surface.phase}, {unit} of the slowest rank: {axes_words(surface)}"
    words += "; +: several points, the slowest is shown" if has_shared_places(surface) else ""
    words += "" if colours else f"; warmth from least to most: {LETTERS.strip()}"
    yield from textwrap.wrap(words, width)
    scale = time_scale(surface, TIME_COLOURS if colours else None, text)
    yield from (f"  {line}".rstrip() for line in heat_lines(surface, scale, width - 2))


def digits(value: float) -> str:
    """Return a positive number with three digits that count, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _skipped(run: BenchRun, every_point: bool) -> Iterator[str]:
    shown = run.skipped if every_point else run.skipped[:MOST_SKIPPED]
    if not shown:
        return
    rows = [("skipped", "point", "reason")]
    rows += [(str(row.point.benchmark_id), point_words(row.point), row.reason) for row in shown]
    yield ""
    yield from table_lines(rows, left=3)
    if len(shown) < len(run.skipped):
        yield f"  and {len(run.skipped) - len(shown)} more; --points lists all"


def _points(points: Sequence[MeasuredPoint]) -> list[str]:
    head = (
        "id",
        "point",
        "rank",
        "ms",
        "samples",
        "least",
        "median",
        "most",
        "cv",
        "KV",
        "expected",
        "engine said",
    )
    rows: list[tuple[str, ...]] = [head]
    for point in points:
        graph = f"{point.point.expected_cudagraph_mode} {point.point.expected_capture_size or '-'}"
        for time in point.ranks:
            words = (str(point.point.benchmark_id), point_words(point.point), str(time.rank))
            rows.append((*words, *_times(time), time.kv_seed_regime or "-", graph, _said(time)))
    return [f"  {line}" for line in aligned([[printable(cell) for cell in row] for row in rows], left=2)]


def _times(time: RankTime) -> tuple[str, ...]:
    found = spread(time.samples)
    if found is None:
        return (digits(time.wall_time * 1e3), "-", "-", "-", "-", "-")
    cv = "-" if found.cv is None else percent(found.cv)
    parts = (digits(value * 1e3) for value in (found.least, found.median, found.most))
    return (digits(time.wall_time * 1e3), str(found.count), *parts, cv)


def _said(time: RankTime) -> str:
    return ", ".join(dict.fromkeys(time.dispatch)) or "-"
