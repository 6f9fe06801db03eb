"""Knows how a map of measured points looks in a terminal: numbers with colours, or with letters for warmth.

Columns that do not fit the width go on below; rows beyond a number are left out evenly, and said to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from forwardpass.analyze.benchmark.surface import Band, Cell, Panel, Surface, warmth
from forwardpass.bench.axes import uniform_cap
from forwardpass.bench.points import Phase
from forwardpass.cli.terminal import printable

__all__ = [
    "LETTERS",
    "RATIO_COLOURS",
    "TIME_COLOURS",
    "Scale",
    "axes_words",
    "band_text",
    "heat_lines",
    "panel_title",
    "time_scale",
]

MOST_ROWS = 40
LETTERS = " .:-=+*#%@"
"""From the least to the most, where there are no colours."""
TIME_COLOURS = (18, 25, 31, 37, 71, 107, 179, 220)
RATIO_COLOURS = (25, 67, 110, 152, 252, 223, 216, 173, 124)
"""Of 256; faster is blue, slower is red."""
_LIGHT_FROM = 71
"""Colours from here on are light enough for black letters, but for the darkest red."""
_GAP = "  "
_END = "-- no graph from here on "
_GRAPH = 40
"""Characters of a graph's name."""


class Scale(Struct, frozen=True):
    """How values are written and coloured."""

    text: Callable[[float], str]
    level: Callable[[float], float]
    """0 to 1."""
    colours: tuple[int, ...] | None
    """``None``: signs instead."""
    sign: Callable[[float], str] = lambda value: ""
    """What stands behind a value where there are no colours."""


class _Column(Struct, frozen=True):
    """One column, as it stands below a panel's title."""

    panel: int
    title: str
    label: str
    cells: tuple[str, ...]
    painted: tuple[str, ...]
    width: int


def time_scale(surface: Surface, colours: tuple[int, ...] | None, text: Callable[[float], str]) -> Scale:
    """Return the scale of one map of times, each step of warmth the same factor."""

    def level(value: float) -> float:
        return warmth(value, surface.least, surface.most)

    return Scale(text, level, colours, lambda value: LETTERS[_step(level(value), len(LETTERS))])


def heat_lines(surface: Surface, scale: Scale, width: int) -> list[str]:
    """Return the maps of a phase as lines of at most ``width`` columns, if one column fits at all."""
    shown = uniform_cap(range(len(surface.rows)), MOST_ROWS)
    labels = [_row_name(surface.phase), *(f"{surface.rows[at]:,}" for at in shown)]
    margin = max(map(len, labels))
    marks = _marks(surface, shown)
    room = width - margin - max((len(mark) for mark in marks), default=0) - 2 * len(_GAP)
    lines: list[str] = []
    for block in _blocks(_columns(surface, shown, scale), room):
        lines += [] if not lines else [""]
        titles = _titles(block).rstrip()
        lines += [f"{' ' * margin}{_GAP}{titles}"] if titles else []
        heads = _GAP.join(column.label.rjust(column.width) for column in block)
        lines.append(f"{labels[0].rjust(margin)}{_GAP}{heads}")
        for at in range(len(shown)):
            if surface.marks and surface.marks[shown[at]].is_first_beyond:
                lines.append(f"{'-' * margin}{_GAP}{_END.ljust(len(heads), '-')}")
            cells = _GAP.join(column.painted[at] for column in block)
            lines.append(f"{labels[at + 1].rjust(margin)}{_GAP}{cells}{_GAP}{marks[at]}".rstrip())
    if len(shown) < len(surface.rows):
        lines.append(f"{len(shown)} of {len(surface.rows)} rows are shown; --points lists all")
    return lines


def axes_words(surface: Surface) -> str:
    """Return in words what the axes are."""
    if surface.phase is Phase.PREFILL:
        return "prompt tokens downwards, requests across"
    return "requests downwards, mean context across"


def panel_title(panel: Panel) -> str:
    """Return what the points of one map have in common; nothing for balanced decodes."""
    words = []
    if panel.reads is not None:
        words.append("nothing read" if panel.reads.high == 0 else f"reads {band_text(panel.reads)}")
    if panel.imbalanced:
        words.append("unequal requests")
    return ", ".join(words)


def band_text(band: Band) -> str:
    """Return a number, or ``64+`` for those from 64 to the next power of two."""
    return f"{band.low:,}" if band.low == band.high else f"{band.low:,}+"


def _row_name(phase: Phase) -> str:
    return "tokens" if phase is Phase.PREFILL else "requests"


def _marks(surface: Surface, shown: Sequence[int]) -> list[str]:
    if surface.marks is None:
        return [""] * len(shown)
    marks = []
    for at in shown:
        mark = surface.marks[at]
        graph = "" if mark.graph is None else printable(mark.graph, _GRAPH)  # the file's own word
        marks.append(f"{'=' if mark.is_captured else '<'} {graph}" if graph else "")
    return marks


def _columns(surface: Surface, shown: Sequence[int], scale: Scale) -> list[_Column]:
    columns = []
    for number, panel in enumerate(surface.panels):
        for at, band in enumerate(panel.columns):
            cells = tuple(_cell_text(panel.cells[row][at], scale) for row in shown)
            width = max(len(band_text(band)), *map(len, cells))
            painted = tuple(
                _painted(panel.cells[row][at], text.rjust(width), scale)
                for row, text in zip(shown, cells, strict=True)
            )
            columns.append(_Column(number, panel_title(panel), band_text(band), cells, painted, width))
    return columns


def _cell_text(cell: Cell | None, scale: Scale) -> str:
    if cell is None:
        return ""
    several = "+" if len(cell.points) > 1 else " "
    return f"{scale.text(cell.value)}{several}{'' if scale.colours else scale.sign(cell.value)}"


def _painted(cell: Cell | None, text: str, scale: Scale) -> str:
    if cell is None or scale.colours is None:
        return text
    colour = scale.colours[_step(scale.level(cell.value), len(scale.colours))]
    letters = 16 if colour >= _LIGHT_FROM and colour != RATIO_COLOURS[-1] else 231
    return f"\x1b[48;5;{colour}m\x1b[38;5;{letters}m{text}\x1b[0m"


def _step(level: float, steps: int) -> int:
    return min(steps - 1, max(0, int(level * steps)))


def _blocks(columns: Sequence[_Column], room: int) -> list[list[_Column]]:
    """Return the columns in groups that fit beside each other; a group has one column at least."""
    blocks: list[list[_Column]] = []
    for column in columns:
        if blocks and _width([*blocks[-1], column]) <= room:
            blocks[-1].append(column)
        else:
            blocks.append([column])
    return [_widened(block) for block in blocks]


def _width(block: Sequence[_Column]) -> int:
    return sum(column.width + len(_GAP) for column in _widened(block)) - len(_GAP)


def _widened(block: Sequence[_Column]) -> list[_Column]:
    """Return the columns with the last of each panel as wide as the panel's title needs."""
    found: list[_Column] = []
    for panel in dict.fromkeys(column.panel for column in block):
        members = [column for column in block if column.panel == panel]
        missing = len(members[0].title) - sum(one.width + len(_GAP) for one in members) + len(_GAP)
        if missing > 0:
            first = members[0]
            pad = " " * missing
            members[0] = _Column(
                first.panel, first.title, first.label, first.cells,
                tuple(pad + text for text in first.painted), first.width + missing,
            )  # fmt: skip
        found += members
    return found


def _titles(block: Sequence[_Column]) -> str:
    parts = []
    for panel in dict.fromkeys(column.panel for column in block):
        members = [column for column in block if column.panel == panel]
        parts.append(members[0].title.ljust(sum(one.width + len(_GAP) for one in members) - len(_GAP)))
    return _GAP.join(parts)
