"""Knows how settings and limits become the grid that is run: generated, or the points of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from forwardpass.bench.config import BenchConfig
from forwardpass.bench.digest import invariants_digest
from forwardpass.bench.engine_config import to_engine
from forwardpass.bench.feasible import FirstChunk, shortfall
from forwardpass.bench.grid import Grid, all_expecting, arrange, build_grid, feasible_max_batch
from forwardpass.bench.limits import CapacityEnvelope, EngineLayout, KvKind
from forwardpass.bench.manifest import PointsFile, manifest_points
from forwardpass.bench.points import Phase, Point
from forwardpass.errors import InfeasiblePoint

__all__ = ["Plan", "invariants", "plan_grid", "rank_invariants_digest"]


class Plan(Struct, frozen=True):
    """What one self-benchmark runs."""

    grid: Grid
    explicit: bool = False
    """Whether the points come from a file, so that each of them has to be measured."""
    dropped_imbalanced: int = 0
    """Points of the file that are left out because their requests differ on purpose."""


def plan_grid(
    config: BenchConfig,
    layout: EngineLayout,
    capacity: CapacityEnvelope,
    *,
    first_chunk: FirstChunk | None = None,
) -> Plan:
    """Return what is run on an engine of that layout with the capacity that its ranks agreed on.

    ``first_chunk`` says how much of a prompt the engine schedules at once, where it has rules of its own.
    Raises :class:`~forwardpass.errors.InfeasiblePoint` for the first point of a file that does not fit,
    also if it reads tokens and nothing keeps prefixes: points of a file are a contract.
    """
    phases = config.mode.phases
    if config.points is None:
        grid = build_grid(
            phases,
            layout,
            capacity,
            samples=config.samples,
            max_batch_size=config.max_batch_size,
            first_chunk=first_chunk,
        )
        return Plan(grid)
    entries, dropped = _entries(config.points, phases, config.collect_imbalanced)
    for entry, point in entries:
        found = shortfall(point, layout, capacity, first_chunk=first_chunk)
        if found is not None:
            raise InfeasiblePoint(entry, _coordinates(point), str(found))
    ends = {
        Phase.PREFILL: capacity.max_num_scheduled_tokens,
        Phase.DECODE: feasible_max_batch(layout, capacity),
    }
    points: list[Point] = []
    for phase, end in ends.items():
        members = [point for _, point in entries if point.point_type is phase]
        points += all_expecting(members, layout, capacity, end)
    return Plan(arrange(points), explicit=True, dropped_imbalanced=dropped)


def invariants(
    config: BenchConfig, layout: EngineLayout, protocol: Mapping[str, Any], *, prefill_real_seed: bool
) -> dict[str, Any]:
    """Return what must be the same on all ranks before they build a grid together.

    ``protocol`` is the artifact's ``measurement_protocol``: content and preparation have to be alike too.
    """
    handed = {key: value for key, value in to_engine(config).items() if key != "output_path"}
    return {
        "benchmark": handed,
        "measurement_protocol": dict(protocol),
        "scheduler_block_size": layout.block_size,
        "hash_block_size": layout.hash_block_size,
        "cache_block_size": layout.cache_block_size or layout.block_size,
        "prefix_caching": layout.prefix_caching,
        "lookahead_tokens": layout.lookahead_tokens,
        "long_prefill_threshold": layout.long_prefill_threshold,
        "adaptive_long_prefill": layout.adaptive_long_prefill,
        "block_aligned_split": any(group.kind is KvKind.RECURRENT_ALIGNED for group in layout.groups),
        "prefill_real_seed": prefill_real_seed,
        "eagle": layout.eagle,
        "per_group_lookup": layout.per_group_lookup,
        "partial_hash_hits": layout.partial_hash_hits,
        "managers": [msgspec.to_builtins(group) for group in layout.groups],
        "prefill_graph_mode": layout.graph.prefill_mode.value,
        "decode_graph_mode": layout.graph.decode_mode.value,
        "prefill_captures": list(layout.graph.prefill_captures()),
        "decode_captures": list(layout.graph.capture_sizes) if layout.graph.decode_mode != "NONE" else [],
    }


def rank_invariants_digest(
    config: BenchConfig, layout: EngineLayout, protocol: Mapping[str, Any], *, prefill_real_seed: bool
) -> str:
    """Return the digest that a rank's capacity carries to the others."""
    return invariants_digest(invariants(config, layout, protocol, prefill_real_seed=prefill_real_seed))


def _entries(
    file: PointsFile, phases: Sequence[Phase], collect_imbalanced: bool
) -> tuple[list[tuple[str, Point]], int]:
    """Return the points that are run, each with its place in the file, and how many are left out."""
    entries = manifest_points(file, tuple(phases))
    kept = [(entry, point) for entry, point in entries if collect_imbalanced or not point.is_imbalanced]
    return kept, len(entries) - len(kept)


def _coordinates(point: Point) -> str:
    if point.point_type is Phase.DECODE:
        return f"{point.batch_size} requests with {point.total_kv_read_tokens} tokens of context"
    return (
        f"{point.batch_size} requests that compute {point.total_prefill_tokens} tokens "
        f"and read {point.total_kv_read_tokens}"
    )
