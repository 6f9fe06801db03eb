"""Knows how a grid looks: tables of its shapes, and pictures in letters that any terminal can show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log2

from forwardpass.bench.axes import uniform_cap
from forwardpass.bench.points import Phase, Point
from forwardpass.cli.output import aligned

__all__ = ["decode_picture", "every_point", "prefill_picture", "shape_tables"]

MAX_ROWS = 40
PLOT_WIDTH = 48
_NO_GRAPH = "no graph"


def shape_tables(points: Sequence[Point]) -> list[str]:
    """Return a table for each phase with a line for each shape: the graph, batches, tokens that are read."""
    lines: list[str] = []
    prefill, decode = _phases(points)
    if prefill:
        rows = [("tokens", "graph", "padding", "why", "requests", "points", "reads at most")]
        for total, members in _by(prefill).items():
            batches = ", ".join(map(str, sorted({point.batch_size for point in members})))
            rows.append((f"{total:,}", *_graph(members[0]), batches, *_reads(members)))
        lines += ["prefill", *_indented(aligned(rows, left=5))]
    if decode:
        shapes = [("requests", "graph", "padding", "why", "points", "reads at most")]
        for batch, members in _by(decode).items():
            shapes.append((f"{batch:,}", *_graph(members[0]), *_reads(members)))
        lines += ["", "decode"] if lines else ["decode"]
        lines += _indented(aligned(shapes, left=4))
    return lines


def every_point(points: Sequence[Point]) -> list[str]:
    """Return a line for each point in the order of execution, replicas too."""
    rows = [("id", "phase", "tokens", "reads", "requests", "graph", "padding", "why")]
    for point in points:
        rows.append(
            (
                str(point.benchmark_id),
                point.point_type.value,
                f"{point.total_prefill_tokens:,}" if point.total_prefill_tokens else "-",
                f"{point.total_kv_read_tokens:,}",
                f"{point.batch_size:,}",
                *_graph(point),
            )
        )
    return [line.rstrip() for line in aligned(rows, left=0)]


def prefill_picture(points: Sequence[Point]) -> list[str]:
    """Return tokens (downwards) by requests: how many prefixes are measured at each place, none included."""
    members, _ = _phases(points)
    if not members:
        return []
    batches = sorted({point.batch_size for point in members})
    counts: dict[tuple[int, int], int] = {}
    for point in members:
        place = (point.total_prefill_tokens, point.batch_size)
        counts[place] = counts.get(place, 0) + 1
    shapes = _by(members)
    rows = [("tokens \\ requests", *map(str, batches), "")]
    edges = _edges(shapes)
    for total in _shown(shapes):
        cells = [str(counts.get((total, batch), ".")) for batch in batches]
        rows.append((f"{total:,}", *cells, edges.get(total, "")))
    lines = aligned(rows, left=1)
    return [
        "prefill: prefixes measured for each number of tokens and requests",
        *_indented(lines),
        *_left_out(shapes),
    ]


def decode_picture(points: Sequence[Point], width: int = PLOT_WIDTH) -> list[str]:
    """Return requests (downwards) by tokens read (to the right, each step the same factor)."""
    _, members = _phases(points)
    if not members:
        return []
    reads = [point.total_kv_read_tokens for point in members]
    least, most = min(reads), max(reads)
    shapes = _by(members)
    edges = _edges(shapes)
    rows = []
    for batch in _shown(shapes):
        cells = [" "] * width
        for point in shapes[batch]:
            place = _place(point.total_kv_read_tokens, least, most, width)
            cells[place] = "o" if cells[place] == " " else "#"
        rows.append((f"{batch:,}", f"|{''.join(cells)}|", edges.get(batch, "")))
    label = len(max((row[0] for row in rows), key=len))
    scale = f"{least:,}".ljust(width - len(f"{most:,}")) + f"{most:,}"
    return [
        "decode: requests, and to the right the tokens that are read (o: a point, #: several)",
        *_indented(f"{name.rjust(label)} {cells} {edge}".rstrip() for name, cells, edge in rows),
        f"  {' ' * label}  {scale}",
        *_left_out(shapes),
    ]


def _place(value: int, least: int, most: int, width: int) -> int:
    if most <= least:
        return 0
    return round((log2(value) - log2(least)) / (log2(most) - log2(least)) * (width - 1))


def _phases(points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    real = [point for point in points if not point.is_replica]
    prefill = [point for point in real if point.point_type is Phase.PREFILL]
    return prefill, [point for point in real if point.point_type is Phase.DECODE]


def _by(points: Sequence[Point]) -> dict[int, list[Point]]:
    """Return the points of each shape, the smallest first."""
    found: dict[int, list[Point]] = {}
    for point in points:
        found.setdefault(point.shape_driver, []).append(point)
    return dict(sorted(found.items()))


def _edges(shapes: dict[int, list[Point]]) -> dict[int, str]:
    """Return what is marked beside a shape: a captured size, or the first that runs without a graph."""
    marks: dict[int, str] = {}
    captured = any(members[0].expected_capture_size for members in shapes.values())
    for shape, members in shapes.items():
        size, mode = members[0].expected_capture_size, members[0].expected_cudagraph_mode
        if size == shape:
            marks[shape] = f"= {mode.value} {size}"
        elif size is None and captured:
            marks[shape] = f"{_NO_GRAPH} from here on"
            captured = False
    return marks


def _shown(shapes: dict[int, list[Point]]) -> list[int]:
    return uniform_cap(list(shapes), MAX_ROWS)


def _left_out(shapes: dict[int, list[Point]]) -> list[str]:
    if len(shapes) <= MAX_ROWS:
        return []
    return [f"  {MAX_ROWS} of {len(shapes)} rows are shown; the table has all"]


def _graph(point: Point) -> tuple[str, str, str]:
    if point.expected_capture_size is None:
        graph, padding = _NO_GRAPH, "-"
    else:
        graph = f"{point.expected_cudagraph_mode.value} {point.expected_capture_size}"
        padding = str(point.padding_tokens)
    return graph, padding, ", ".join(point.sample_reasons) or "-"


def _reads(members: Sequence[Point]) -> tuple[str, str]:
    return str(len(members)), f"{max(point.total_kv_read_tokens for point in members):,}"


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]
