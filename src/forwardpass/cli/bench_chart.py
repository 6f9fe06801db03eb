"""Knows how a run's maps become a picture, with the library of the extra ``plot``."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any

from forwardpass.analyze.benchmark.run import BenchRun
from forwardpass.analyze.benchmark.surface import Panel, Surface, warmth
from forwardpass.bench.axes import uniform_cap
from forwardpass.bench.points import Phase
from forwardpass.cli.bench_show_view import time_texts
from forwardpass.cli.heat_map import band_text, panel_title
from forwardpass.cli.terminal import printable
from forwardpass.errors import ConfigError, MissingExtra

__all__ = ["EXTRA", "chart"]

EXTRA = "plot"
MOST_PANELS = 12
"""Of each phase, evenly; a picture of more cannot be read."""
MOST_ROWS = 60
_MAP = "viridis"


def chart(run: BenchRun, maps: list[Surface]) -> bytes:
    """Return the maps as a PNG file.

    Raises :class:`~forwardpass.errors.MissingExtra` without matplotlib, and
    :class:`~forwardpass.errors.ConfigError` if there is nothing to draw.
    """
    figures = _load("matplotlib.figure")
    _load("matplotlib.backends.backend_agg")
    if not maps:
        raise ConfigError("--png", run.file, "a file with at least one measured point")
    shown = [(surface, _evenly(surface.panels)) for surface in maps]
    across = max(min(4, len(panels)) for _, panels in shown)
    down = sum(-(-len(panels) // 4) for _, panels in shown)
    figure = figures.Figure(figsize=(1 + 4.2 * across, 0.8 + 3.8 * down), layout="constrained")
    # Text of the file must not be taken for a formula.
    figure.suptitle(printable(Path(run.file).name, 120), parse_math=False, fontsize=10)
    place = 0
    for surface, panels in shown:
        for at, panel in enumerate(panels):
            axes = figure.add_subplot(down, across, (place + at // 4) * across + at % 4 + 1)
            _draw(axes, surface, panel)
        place += -(-len(panels) // 4)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()


def _evenly(panels: tuple[Panel, ...]) -> list[Panel]:
    return [panels[at] for at in uniform_cap(range(len(panels)), MOST_PANELS)]


def _load(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra("matplotlib", EXTRA) from error


def _draw(axes: Any, surface: Surface, panel: Panel) -> None:
    unit, text = time_texts(surface)
    rows = uniform_cap(range(len(surface.rows)), MOST_ROWS)
    levels = [
        [
            float("nan") if cell is None else warmth(cell.value, surface.least, surface.most)
            for cell in panel.cells[row]
        ]
        for row in rows
    ]
    axes.imshow(levels, cmap=_MAP, vmin=0, vmax=1, aspect="auto")
    size = 8 if len(rows) <= 16 and len(panel.columns) <= 8 else 5
    for at, row in enumerate(rows):
        for across, cell in enumerate(panel.cells[row]):
            if cell is not None:
                colour = "black" if levels[at][across] > 0.6 else "white"
                several = "+" if len(cell.points) > 1 else ""
                words = f"{text(cell.value)}{several}"
                axes.text(across, at, words, ha="center", va="center", fontsize=size, color=colour)
    _label(axes, surface, panel, rows)
    title = ", ".join(filter(None, (surface.phase.value, panel_title(panel))))
    axes.set_title(f"{title} ({unit})", fontsize=9)


def _label(axes: Any, surface: Surface, panel: Panel, rows: list[int]) -> None:
    prefill = surface.phase is Phase.PREFILL
    axes.set_xticks(range(len(panel.columns)), [band_text(column) for column in panel.columns], fontsize=7)
    names = []
    for at, row in enumerate(rows):
        mark = surface.marks[row] if surface.marks else None
        names.append(f"{surface.rows[row]:,}{' =' if mark is not None and mark.is_captured else ''}")
        if mark is not None and mark.is_first_beyond:
            axes.axhline(at - 0.5, color="red", linewidth=1.5)  # below it there is no graph
    axes.set_yticks(range(len(rows)), names, fontsize=7)
    axes.set_xlabel("requests" if prefill else "mean context (tokens)", fontsize=8)
    axes.set_ylabel("prompt tokens (=: captured)" if prefill else "requests (=: captured)", fontsize=8)
