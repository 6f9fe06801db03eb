"""Knows which points a self-benchmark measures, and in which order: grid, replicas, ids and digest.

A grid follows from the options, the layout that all ranks share and the capacity that they agreed on; nothing
else. So ranks that agree on those build the same grid, and say so by its digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace as _replace

from forwardpass.bench.axes import graph_axis, graph_cap, ladder, largest, powers_of_two, uniform_cap
from forwardpass.bench.digest import grid_digest
from forwardpass.bench.feasible import FirstChunk, shortfall
from forwardpass.bench.footprint import footprint
from forwardpass.bench.largest_batch import largest_batch
from forwardpass.bench.limits import CapacityEnvelope, EngineLayout, KvKind
from forwardpass.bench.partition import even_split
from forwardpass.bench.points import EAGER_WARMUP, Expectation, Phase, Point, expect_graph

__all__ = [
    "Grid",
    "SampleLimits",
    "all_expecting",
    "arrange",
    "build_grid",
    "expecting",
    "feasible_max_batch",
    "steady_total",
]


class SampleLimits(Struct, frozen=True):
    """How many values an axis has at most."""

    prefill_new_tokens: int = 64
    prefill_kv_reads: int = 16
    """For each pair of new tokens and batch size."""
    prefill_batches: int = 3
    """For each number of new tokens: the first so many."""
    decode_kv_reads: int = 128
    """For each batch size."""
    decode_batches: int = 128


class Grid(Struct, frozen=True):
    """The points of one self-benchmark."""

    points: tuple[Point, ...]
    """In the order of execution: replicas of a phase, then its points; prefill before decode."""
    missing_phases: tuple[Phase, ...]
    """Phases that were asked for and have no point, so that the result cannot be whole."""
    digest: str
    expected_points: int
    """How many results a whole run has; replicas give none."""


class _Planner:
    """The engine that a grid is built for."""

    def __init__(
        self,
        layout: EngineLayout,
        capacity: CapacityEnvelope,
        samples: SampleLimits,
        first_chunk: FirstChunk | None,
    ) -> None:
        self.layout = layout
        self.capacity = capacity
        self.samples = samples
        self.first_chunk = first_chunk

    def fits(self, point: Point) -> bool:
        return shortfall(point, self.layout, self.capacity, first_chunk=self.first_chunk) is None

    # --- prefill -------------------------------------------------------------------------------------

    def prefill(self) -> list[Point]:
        """Return the prefill points, the largest first."""
        limit = self.capacity.max_num_scheduled_tokens
        captures = self.layout.graph.prefill_captures()
        axis = set(graph_axis(captures, limit))
        for group in self.layout.managers:
            if group.kind is KvKind.RECURRENT_ALIGNED:
                axis.update(range(2 * group.block_size, limit + 1, group.block_size))
        points = [
            point
            for total in graph_cap(sorted(axis), captures, self.samples.prefill_new_tokens)
            for batch in self._batches(total)
            for point in self._reads(total, batch)
        ]
        points.reverse()
        return all_expecting(points, self.layout, self.capacity, limit)

    def _batches(self, total: int) -> list[int]:
        """Return the first batch sizes: feasible powers of two, and the largest that is feasible."""
        most = min(total, self.capacity.max_num_running_reqs)
        feasible = {batch for batch in powers_of_two(1, most) if self.fits(_prefill(total, batch))}
        more = largest_batch(
            total, max(feasible, default=1), self.layout, self.capacity, first_chunk=self.first_chunk
        )
        if more is not None:
            feasible.add(more)
        return sorted(feasible)[: self.samples.prefill_batches]

    def _reads(self, total: int, batch: int) -> list[Point]:
        """Return the points of one batch: without a prefix, and with ever longer ones."""
        unit, longest = self.layout.hash_block_size, self.capacity.max_model_len
        fresh = _prefill(total, batch)
        if not self.layout.prefix_caching:
            return [fresh]
        room = sum(count * max(0, (longest - new - 1) // unit) for new, count in even_split(total, batch))
        most = largest(batch, room, lambda blocks: self.fits(_prefill(total, batch, blocks * unit)))
        if most < batch:
            return [fresh]
        blocks = uniform_cap([0, *ladder(batch, most)], self.samples.prefill_kv_reads)
        points = [_prefill(total, batch, each * unit) for each in blocks]
        if self.first_chunk is None:
            return points  # what is shorter than the longest that fits does too
        return [point for point in points if not point.total_kv_read_tokens or self.fits(point)]

    # --- decode --------------------------------------------------------------------------------------

    def decode(self, max_batch: int | None) -> list[Point]:
        """Return the decode points, ascending; ``max_batch`` ends the axis of batch sizes."""
        limit = feasible_max_batch(self.layout, self.capacity, max_batch)
        captures = self.layout.graph.decode_captures(self.capacity.max_num_running_reqs)
        batches = graph_cap(graph_axis(captures, limit), captures, self.samples.decode_batches)
        points = [point for batch in batches for point in self._contexts(batch)]
        return all_expecting(points, self.layout, self.capacity, limit)

    def _contexts(self, batch: int) -> list[Point]:
        """Return the points of one batch with ever longer contexts."""
        longest = batch * (self.capacity.max_model_len - 2)
        most = largest(batch, longest, lambda total: self.fits(_decode(total, batch)))
        if most < batch:
            return []
        totals = sorted({steady_total(total, batch) for total in ladder(batch, most)})
        points = [_decode(total, batch) for total in uniform_cap(totals, self.samples.decode_kv_reads)]
        return [point for point in points if point.total_kv_read_tokens <= most or self.fits(point)]


def _prefill(total: int, batch: int, read: int = 0) -> Point:
    return Point(Phase.PREFILL, 0, total, read, batch)


def _decode(total: int, batch: int) -> Point:
    return Point(Phase.DECODE, 0, 0, total, batch)


def build_grid(
    phases: Sequence[Phase],
    layout: EngineLayout,
    capacity: CapacityEnvelope,
    *,
    samples: SampleLimits | None = None,
    max_batch_size: int | None = None,
    first_chunk: FirstChunk | None = None,
) -> Grid:
    """Return the grid that is generated for an engine.

    ``max_batch_size`` ends the axis of decode batches. ``first_chunk`` says how much of a prompt the engine
    schedules at once, where it has rules of its own.
    """
    planner = _Planner(layout, capacity, samples or SampleLimits(), first_chunk)
    generated = {
        Phase.PREFILL: planner.prefill if Phase.PREFILL in phases else None,
        Phase.DECODE: (lambda: planner.decode(max_batch_size)) if Phase.DECODE in phases else None,
    }
    points = {phase: make() for phase, make in generated.items() if make is not None}
    missing = tuple(phase for phase, found in points.items() if not found)
    return arrange([point for found in points.values() for point in found], missing)


def expecting(point: Point, layout: EngineLayout, capacity: CapacityEnvelope, limit: int) -> Point:
    """Return ``point`` with what is expected of it on this engine; ``limit`` is the end of its axis."""
    return all_expecting([point], layout, capacity, limit)[0]


def all_expecting(
    points: Sequence[Point], layout: EngineLayout, capacity: CapacityEnvelope, limit: int
) -> list[Point]:
    """Return ``points`` of one phase with what is expected of them; points of one shape expect the same."""
    found: list[Point] = []
    expected: dict[int, Expectation] = {}
    for point in points:
        driver = point.shape_driver
        each = expected.get(driver)
        if each is None:
            if point.point_type is Phase.PREFILL:
                captures, mode = layout.graph.prefill_captures(), layout.graph.prefill_mode
            else:
                captures = layout.graph.decode_captures(capacity.max_num_running_reqs)
                mode = layout.graph.decode_mode
            each = expected[driver] = expect_graph(driver, captures, mode, limit)
        found.append(
            _replace(
                point,
                expected_cudagraph_mode=each.mode,
                expected_capture_size=each.capture_size,
                padding_tokens=each.padding_tokens,
                sample_reasons=(*point.sample_reasons, *each.reasons),
            )
        )
    return found


def feasible_max_batch(layout: EngineLayout, capacity: CapacityEnvelope, cap: int | None = None) -> int:
    """Return the most decode requests that fit into one pass, 0 if there cannot be one."""
    if capacity.max_model_len < 3:
        return 0
    each = footprint(2, layout.managers)
    by_blocks = capacity.usable_blocks_with_watermark // each if each else capacity.max_num_running_reqs
    most = min(capacity.max_num_running_reqs, capacity.max_num_scheduled_tokens, by_blocks)
    return max(0, most if cap is None else min(most, cap))


def steady_total(total: int, batch: int) -> int:
    """Return the context tokens that a steady decode step of ``batch`` requests measures for ``total``.

    Each request is admitted one token short of its context, with one at least, and the step that is measured
    comes after that.
    """
    contexts = even_split(total, batch)
    return sum(count * max(1, context - 1) for context, count in contexts) + batch


def arrange(points: Iterable[Point], missing_phases: Sequence[Phase] = ()) -> Grid:
    """Return the grid of ``points``, which are in order within their phases: with replicas, ids and digest.

    The first execution of a shape without a graph may take a second, so that each such shape is run once
    before its phase and thrown away. Ids count the other points from 1; replicas come after all of them.
    """
    found = list(points)
    numbered = {
        phase: [point for point in found if point.point_type is phase]
        for phase in (Phase.PREFILL, Phase.DECODE)
    }
    next_id = 1
    for phase, members in numbered.items():
        numbered[phase] = [
            _replace(point, benchmark_id=number) for number, point in enumerate(members, next_id)
        ]
        next_id += len(members)
    ordered: list[Point] = []
    for members in numbered.values():
        replicas = _replicas(members, next_id)
        next_id += len(replicas)
        ordered += [*replicas, *members]
    return Grid(tuple(ordered), tuple(missing_phases), grid_digest(ordered), len(found))


def _replicas(points: Sequence[Point], first_id: int) -> list[Point]:
    eager: dict[int, Point] = {}
    for point in points:
        if point.expected_capture_size is None:
            eager.setdefault(point.shape_driver, point)
    return [
        _replace(point, benchmark_id=number, sample_reasons=(EAGER_WARMUP,))
        for number, point in enumerate(eager.values(), first_id)
    ]
