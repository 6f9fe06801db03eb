"""Knows how a run becomes one HTML page: tables only, so that it needs no network and no script.

An artifact is a stranger's: each of its strings is escaped, control characters and direction marks are
replaced, and the page forbids its reader's browser to load or run anything.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from forwardpass import __version__
from forwardpass.analyze.benchmark.overview import Overview
from forwardpass.analyze.benchmark.run import BenchRun, MeasuredPoint, RankTime
from forwardpass.analyze.benchmark.spread import spread
from forwardpass.analyze.benchmark.surface import Cell, Panel, Surface, warmth
from forwardpass.cli.bench_facts import facts, percent, point_words
from forwardpass.cli.bench_show_view import digits, has_shared_places, time_texts
from forwardpass.cli.heat_map import axes_words, band_text, panel_title
from forwardpass.cli.terminal import printable

__all__ = ["page", "shade"]

MOST_POINTS = 20_000
"""Lines of the table of points; a browser is slow with more."""
_POINT_HEAD = (
    *("id", "point", "rank", "time", "samples", "least", "median", "most", "cv", "KV"),
    *("expected graph", "engine said"),
)
_LINE = 4000
"""Characters of a text of the file that are shown."""
_WARM = ((46, 64, 130), (38, 140, 140), (160, 200, 90), (255, 220, 80))
"""Red, green and blue from the least to the most."""
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 90em; padding: 0 1em; color: #222 }
h1 { font-size: 1.4em } h2 { font-size: 1.15em; margin-top: 2em }
caption { text-align: left; padding: .3em 0 }
table { border-collapse: collapse; margin: .5em 1.5em 1em 0; font-variant-numeric: tabular-nums }
th, td { padding: .15em .6em; text-align: right; border: 1px solid #ddd }
th { background: #f5f5f5; font-weight: 600 }
.facts th, .text { text-align: left } .facts td { text-align: left }
.maps { display: flex; flex-wrap: wrap; align-items: flex-start } .wide { overflow-x: auto }
tr.beyond td, tr.beyond th { border-top: 3px solid #c22 }
.captured { font-weight: 700 } .none { background: #fafafa }
"""


def page(run: BenchRun, view: Overview, maps: Sequence[Surface]) -> str:
    """Return the page as text; it is UTF-8."""
    name = _safe(Path(run.file).name)
    body = [
        f"<h1>{name}</h1>",
        f"<p>{_safe(run.kind)} file of a self-benchmark; what it claims is shown as it stands.</p>",
        *_facts(run, view),
    ]
    for surface in maps:
        body += _maps(surface)
    body += [*_skipped(run), *_points(run.points)]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            "style-src 'unsafe-inline'\">",
            '<meta name="viewport" content="width=device-width">',
            f"<title>{name}</title><style>{_STYLE}</style></head><body>",
            *body,
            f"<p>Written by forwardpass {_safe(__version__)}.</p>",
            "</body></html>",
            "",
        ]
    )


def shade(level: float) -> str:
    """Return the colour of a warmth from 0 to 1, such as ``#2e4082``."""
    at = min(1.0, max(0.0, level)) * (len(_WARM) - 1)
    place = min(int(at), len(_WARM) - 2)
    low, high = _WARM[place], _WARM[place + 1]
    parts = (round(one + (other - one) * (at - place)) for one, other in zip(low, high, strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)


def _safe(text: object) -> str:
    return html.escape(printable(str(text), _LINE), quote=True)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], *, name: str = "") -> Iterator[str]:
    """Yield a table of text that is not yet safe."""
    yield f'<div class="wide"><table{f" class={name}" if name else ""}>'
    yield "<tr>" + "".join(f"<th>{_safe(cell)}</th>" for cell in head) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(f'<td class="text">{_safe(cell)}</td>' for cell in row) + "</tr>"
    yield "</table></div>"


def _facts(run: BenchRun, view: Overview) -> Iterator[str]:
    yield '<table class="facts">'
    for label, text in facts(run, view):
        yield f"<tr><th>{_safe(label)}</th><td>{_safe(text)}</td></tr>"
    yield "</table>"


def _maps(surface: Surface) -> Iterator[str]:
    unit, text = time_texts(surface)
    yield f"<h2>{_safe(surface.phase)}</h2>"
    shared = (
        " +: several points share the place, and the slowest is shown." if has_shared_places(surface) else ""
    )
    captured = (
        " Rows in bold have exactly the size of a captured graph; below the red line there is no graph."
        if surface.marks and any(mark.graph for mark in surface.marks)
        else ""
    )
    words = f"{unit} of the slowest rank: {axes_words(surface)}.{shared}{captured}"
    yield f"<p>{_safe(words)}</p>"
    steps = (
        surface.least * (surface.most / surface.least) ** (at / 4) if surface.least > 0 else 0
        for at in range(5)
    )
    legend = "".join(_cell(Cell(value, (0,)), surface, text) for value in steps)
    yield f"<table><tr><th>least to most</th>{legend}</tr></table>"
    yield '<div class="maps">'
    for panel in surface.panels:
        yield from _panel(panel, surface, text)
    yield "</div>"


def _panel(panel: Panel, surface: Surface, text: Callable[[float], str]) -> Iterator[str]:
    yield f"<table><caption>{_safe(panel_title(panel))}</caption>"
    heads = "".join(f'<th scope="col">{_safe(band_text(column))}</th>' for column in panel.columns)
    yield f"<tr><th></th>{heads}<th>graph</th></tr>"
    for at, row in enumerate(surface.rows):
        mark = None if surface.marks is None else surface.marks[at]
        beyond = mark is not None and mark.is_first_beyond
        captured = mark is not None and mark.is_captured
        graph = "not known" if mark is None else mark.graph or "none"
        cells = "".join(_cell(cell, surface, text) for cell in panel.cells[at])
        yield (
            f"<tr{' class=beyond' if beyond else ''}>"
            f'<th scope="row"{" class=captured" if captured else ""}>{row:,}</th>{cells}'
            f'<td class="text">{_safe(graph)}</td></tr>'
        )
    yield "</table>"


def _cell(cell: Cell | None, surface: Surface, text: Callable[[float], str]) -> str:
    if cell is None:
        return '<td class="none"></td>'
    level = warmth(cell.value, surface.least, surface.most)
    letters = "#fff" if level < 0.5 else "#000"
    several = "+" if len(cell.points) > 1 else ""
    return f'<td style="background:{shade(level)};color:{letters}">{_safe(text(cell.value))}{several}</td>'


def _skipped(run: BenchRun) -> Iterator[str]:
    if run.skipped:
        yield "<h2>skipped points</h2>"
        rows = ((row.point.benchmark_id, point_words(row.point), row.reason) for row in run.skipped)
        yield from _table(("id", "point", "reason"), (map(str, row) for row in rows))


def _points(points: Sequence[MeasuredPoint]) -> Iterator[str]:
    rows = [(point, time) for point in points for time in point.ranks]
    if not rows:
        return
    yield "<h2>points</h2><p>Times in ms. Samples are steps of one launch; - is not recorded.</p>"
    if len(rows) > MOST_POINTS:
        yield f"<p>{MOST_POINTS:,} of {len(rows):,} lines; --json has all.</p>"
    yield from _table(_POINT_HEAD, (_row(point, time) for point, time in rows[:MOST_POINTS]))


def _row(point: MeasuredPoint, time: RankTime) -> Iterator[str]:
    found = spread(time.samples)
    yield from (str(point.point.benchmark_id), point_words(point.point), str(time.rank))
    yield digits(time.wall_time * 1e3)
    if found is None:
        yield from "-----"
    else:
        yield str(found.count)
        yield from (digits(value * 1e3) for value in (found.least, found.median, found.most))
        yield "-" if found.cv is None else percent(found.cv)
    yield time.kv_seed_regime or "-"
    yield f"{point.point.expected_cudagraph_mode} {point.point.expected_capture_size or '-'}"
    yield ", ".join(dict.fromkeys(time.dispatch)) or "-"
