"""Knows how measured points lie on a map: tokens or requests downwards, requests or contexts across.

Prefill: tokens by requests, a panel for each band of tokens that are read. Decode: requests by mean context.
Both have the engine's captured graph sizes as marks on their rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from math import log

from msgspec import Struct

from forwardpass.analyze.benchmark.run import MeasuredPoint
from forwardpass.artifact.blocks import CudaGraphs, PointRecord
from forwardpass.bench.axes import uniform_cap
from forwardpass.bench.points import Phase

__all__ = ["Band", "Cell", "Mark", "Panel", "Surface", "surfaces", "warmth"]

MOST_COLUMNS = 12
MOST_PANELS = 4
MOST_ROWS = 1000
"""Of the points in other rows nothing is on the map; no grid that is planned here has so many."""


class Band(Struct, frozen=True, order=True):
    """Numbers from ``low`` to ``high``, both included."""

    low: int
    high: int

    def __contains__(self, value: int) -> bool:
        """Say whether a number lies in it."""
        return self.low <= value <= self.high


class Cell(Struct, frozen=True):
    """What stands at one place of a map."""

    value: float
    """Of the point that counts: for times that of the slowest."""
    points: tuple[int, ...]
    """``benchmark_id`` of each point that lies here."""


class Mark(Struct, frozen=True):
    """What the captured graphs mean for a row."""

    graph: str | None
    """Mode and size of the smallest graph that holds it; ``None`` without one."""
    is_captured: bool
    """Whether it has exactly the size of a graph."""
    is_first_beyond: bool
    """Whether the graphs end before this row."""


class Panel(Struct, frozen=True):
    """One map."""

    reads: Band | None
    """Tokens that are read (prefill); ``None`` where columns are contexts."""
    imbalanced: bool
    """Whether its points have requests that differ on purpose."""
    columns: tuple[Band, ...]
    """Requests of a prefill, mean tokens of context of a decode."""
    cells: tuple[tuple[Cell | None, ...], ...]
    """For each row one for each column."""


class Surface(Struct, frozen=True):
    """All maps of one phase; their rows are the same."""

    phase: Phase
    rows: tuple[int, ...]
    """Tokens to compute of a prefill, requests of a decode; ascending."""
    marks: tuple[Mark, ...] | None
    """For each row; ``None`` if the file does not say what was captured."""
    panels: tuple[Panel, ...]
    least: float
    most: float
    """The smallest and the largest value of all cells."""


Pick = Callable[[Sequence[float]], float]


def surfaces(
    points: Iterable[MeasuredPoint],
    graphs: CudaGraphs | None,
    value: Callable[[MeasuredPoint], float | None],
    pick: Pick = max,
) -> list[Surface]:
    """Return the maps of both phases, of the points for which there is a ``value``.

    ``pick`` says which value counts where several points lie at one place.
    """
    known = [(point, number) for point in points if (number := value(point)) is not None]
    found = []
    for phase in Phase:
        members = [(point, number) for point, number in known if point.point.point_type is phase]
        if members:
            found.append(_surface(phase, members, graphs, pick))
    return found


def warmth(value: float, least: float, most: float) -> float:
    """Return where ``value`` lies between two others, 0 to 1, each step the same factor."""
    if least <= 0:  # there is no factor from 0
        return 0.0 if most <= least else (value - least) / (most - least)
    return 0.0 if most <= least else log(value / least) / log(most / least)


def _surface(
    phase: Phase, members: Sequence[tuple[MeasuredPoint, float]], graphs: CudaGraphs | None, pick: Pick
) -> Surface:
    rows = tuple(uniform_cap(sorted({_row(point.point) for point, _ in members}), MOST_ROWS))
    if len(rows) == MOST_ROWS:
        kept = set(rows)
        members = [member for member in members if _row(member[0].point) in kept]
    groups: dict[tuple[bool, Band | None], list[tuple[MeasuredPoint, float]]] = {}
    bands = _bands([point.point.total_kv_read_tokens for point, _ in members], MOST_PANELS)
    for point, number in members:
        read = point.point.total_kv_read_tokens
        band = _band_of(read, bands) if phase is Phase.PREFILL else None
        groups.setdefault((_is_imbalanced(point.point), band), []).append((point, number))
    ordered = sorted(groups, key=lambda group: (group[0], group[1] or Band(0, 0)))
    panels = tuple(_panel(group, groups[group], rows, pick) for group in ordered)
    values = [cell.value for panel in panels for line in panel.cells for cell in line if cell]
    marks = None if graphs is None else tuple(_marks(phase, rows, graphs))
    return Surface(phase, rows, marks, panels, min(values), max(values))


def _panel(
    group: tuple[bool, Band | None],
    members: Sequence[tuple[MeasuredPoint, float]],
    rows: Sequence[int],
    pick: Pick,
) -> Panel:
    columns = _bands([_column(point.point) for point, _ in members], MOST_COLUMNS)
    places: dict[tuple[int, Band], list[tuple[MeasuredPoint, float]]] = {}
    for point, number in members:
        place = (_row(point.point), _band_of(_column(point.point), columns))
        places.setdefault(place, []).append((point, number))
    cells = tuple(tuple(_cell(places.get((row, column)), pick) for column in columns) for row in rows)
    return Panel(group[1], group[0], tuple(columns), cells)


def _cell(members: Sequence[tuple[MeasuredPoint, float]] | None, pick: Pick) -> Cell | None:
    if not members:
        return None
    numbers = tuple(point.point.benchmark_id for point, _ in members)
    return Cell(pick([number for _, number in members]), numbers)


def _row(point: PointRecord) -> int:
    return point.total_prefill_tokens if point.point_type is Phase.PREFILL else point.batch_size


def _column(point: PointRecord) -> int:
    if point.point_type is Phase.PREFILL:
        return point.batch_size
    return point.total_kv_read_tokens // point.batch_size


def _is_imbalanced(point: PointRecord) -> bool:
    return point.partition is not None or len(set(point.rows or ())) > 1


def _bands(values: Iterable[int], most: int) -> list[Band]:
    """Return a band for each value; where those are too many, one from each power of two to the next."""
    exact = sorted(set(values))
    if len(exact) <= most:
        return [Band(value, value) for value in exact]
    lows = sorted({1 << value.bit_length() - 1 if value else 0 for value in exact})
    return [Band(low, max(0, 2 * low - 1)) for low in lows]


def _band_of(value: int, bands: Sequence[Band]) -> Band:
    return next(band for band in reversed(bands) if band.low <= value)


def _marks(phase: Phase, rows: Sequence[int], graphs: CudaGraphs) -> Iterable[Mark]:
    if phase is Phase.PREFILL:
        sizes, mode = sorted(graphs.prefill_capture_sizes), graphs.prefill_mode
    else:
        sizes, mode = sorted(graphs.decode_capture_sizes), graphs.decode_mode
    covered = bool(sizes)
    for row in rows:
        place = bisect_left(sizes, row)
        inside = place < len(sizes)
        yield Mark(
            graph=f"{mode} {sizes[place]}" if inside else None,
            is_captured=inside and sizes[place] == row,
            is_first_beyond=covered and not inside,
        )
        covered = covered and inside
