"""Knows why a generated grid ends where it ends: the next larger point on each axis, and what it breaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from forwardpass.bench.axes import largest
from forwardpass.bench.feasible import FirstChunk, Shortfall, shortfall
from forwardpass.bench.limits import CapacityEnvelope, EngineLayout
from forwardpass.bench.points import Phase, Point

__all__ = ["Beyond", "beyond"]


class Beyond(Struct, frozen=True):
    """One candidate that is not in the grid."""

    axis: str
    """Which axis it would have continued."""
    point: Point
    why: str
    """The first limit that it breaks with both numbers, or the option that left it out."""


def beyond(
    phases: Sequence[Phase],
    points: Sequence[Point],
    layout: EngineLayout,
    capacity: CapacityEnvelope,
    *,
    max_batch_size: int | None = None,
    first_chunk: FirstChunk | None = None,
) -> list[Beyond]:
    """Return the candidates next to the ends of all axes of ``points``, a generated grid's of ``phases``.

    Prefill: the least number of new tokens that does not fit; for each number of new tokens the next larger
    batch; for each batch the next longer prefix. Decode: the next larger batch; for each batch the next
    longer context. So a phase without a point has one candidate: the smallest point there is.
    """
    real = [point for point in points if not point.is_replica]

    def judged(point: Point) -> Shortfall | None:
        return shortfall(point, layout, capacity, first_chunk=first_chunk)

    found: list[tuple[str, Point]] = []
    if Phase.PREFILL in phases:
        most = largest(1, capacity.max_num_scheduled_tokens, lambda total: judged(_alone(total)) is None)
        found.append(("new tokens", _alone(most + 1)))
        prefill = [point for point in real if point.point_type is Phase.PREFILL]
        found += _prefill(prefill, layout.hash_block_size)
    if Phase.DECODE in phases:
        found += _decode([point for point in real if point.point_type is Phase.DECODE])
    return [Beyond(axis, point, _why(axis, point, judged(point), max_batch_size)) for axis, point in found]


def _alone(total: int) -> Point:
    return Point(Phase.PREFILL, 0, total, 0, 1)


def _prefill(points: Sequence[Point], unit: int) -> Iterator[tuple[str, Point]]:
    longest: dict[tuple[int, int], int] = {}
    batches: dict[int, int] = {}
    for point in points:
        total, batch = point.total_prefill_tokens, point.batch_size
        longest[total, batch] = max(point.total_kv_read_tokens, longest.get((total, batch), 0))
        batches[total] = max(batch, batches.get(total, 0))
    for total, batch in batches.items():
        yield "batch size", Point(Phase.PREFILL, 0, total, 0, batch + 1)
    for (total, batch), read in longest.items():
        step = unit if read else batch * unit
        yield "prefix", Point(Phase.PREFILL, 0, total, read + step, batch)


def _decode(points: Sequence[Point]) -> Iterator[tuple[str, Point]]:
    longest: dict[int, int] = {}
    for point in points:
        longest[point.batch_size] = max(point.total_kv_read_tokens, longest.get(point.batch_size, 0))
    more = max(longest, default=0) + 1
    yield "batch size", Point(Phase.DECODE, 0, 0, 2 * more, more)
    for batch, total in longest.items():
        yield "context", Point(Phase.DECODE, 0, 0, total + 1, batch)


def _why(axis: str, point: Point, found: Shortfall | None, max_batch_size: int | None) -> str:
    if found is not None:
        return str(found)
    if point.point_type is Phase.DECODE and max_batch_size is not None and point.batch_size > max_batch_size:
        return f"it fits; --benchmark-max-batch-size is {max_batch_size}"
    return f"it fits; left out by the limit of samples, or because the {axis} goes in larger steps"
