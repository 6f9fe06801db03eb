"""Knows how an artifact says what was measured on which engine, so that the same can be planned again."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from forwardpass.bench.config import BenchConfig
from forwardpass.bench.engine_config import from_engine
from forwardpass.bench.like_groups import SaidEngine, groups_of, hash_tokens
from forwardpass.bench.limits import CapacityEnvelope, EngineLayout, GraphMode, GraphSettings
from forwardpass.bench.limits_file import EngineLimits, limits_from
from forwardpass.bench.manifest import file_of, points_from
from forwardpass.bench.points import EXPLICIT, Point
from forwardpass.errors import ConfigError, ManifestError

__all__ = ["Likeness", "likeness"]


class Likeness(Struct, frozen=True):
    """What an artifact tells a planner."""

    config: BenchConfig
    """With the points that were measured or skipped, if they came from a file."""
    limits: EngineLimits
    grid_digest: str | None


class _Limits(Struct, frozen=True):
    max_num_scheduled_tokens: int
    max_num_running_reqs: int
    max_model_len: int
    block_size: int
    num_gpu_blocks: int


class _Graph(Struct, frozen=True):
    mode: str = "NONE"
    prefill_mode: GraphMode = GraphMode.NONE
    decode_mode: GraphMode = GraphMode.NONE
    capture_sizes: tuple[int, ...] = ()


class _Capacity(Struct, frozen=True):
    common: CapacityEnvelope | None = None


class _Row(Struct, frozen=True):
    point: Point


class _Artifact(Struct, frozen=True):
    config: dict[str, Any]
    limits: _Limits
    cudagraph: _Graph = _Graph()
    capacity: _Capacity = _Capacity()
    engine: SaidEngine | None = None
    results: tuple[_Row, ...] = ()
    skipped_points: tuple[_Row, ...] = ()
    grid_digest: str | None = None


def likeness(document: dict[str, Any], option: str, path: str) -> Likeness:
    """Return what an artifact of any rank, or a merged one, says of its plan.

    Which kinds of blocks the engine has is told from its ``engine`` block; without one, a single group of
    full attention is assumed. Raises :class:`ManifestError` if it says too little, or something that cannot
    be.
    """
    try:
        found = msgspec.convert(document, _Artifact)
        config = from_engine(found.config)
    except (msgspec.MsgspecError, ConfigError) as error:
        raise ManifestError(option, path, [str(error)]) from error
    capacity = found.capacity.common or _local(found.limits)
    block_size = found.limits.block_size
    groups = groups_of(
        found.engine or SaidEngine(),
        block_size=block_size,
        max_model_len=found.limits.max_model_len,
        pass_tokens=found.limits.max_num_scheduled_tokens,
    )
    layout = EngineLayout(
        groups=groups,
        block_size=block_size,
        hash_block_size=hash_tokens(groups, block_size),
        prefix_caching=_keeps_prefixes(found.engine),
        graph=GraphSettings(**msgspec.structs.asdict(found.cudagraph)),
    )
    limits = limits_from(msgspec.to_builtins(EngineLimits(layout, capacity)), option, path)
    try:
        return Likeness(_with_points(config, found), limits, found.grid_digest)
    except ManifestError as error:
        raise ManifestError(option, path, error.problems) from error


def _local(limits: _Limits) -> CapacityEnvelope:
    """Return what one rank said of itself, where the ranks never agreed: one block holds nothing."""
    blocks = max(0, limits.num_gpu_blocks - 1)
    return CapacityEnvelope(
        limits.max_model_len, limits.max_num_scheduled_tokens, limits.max_num_running_reqs, blocks, blocks
    )


def _keeps_prefixes(engine: SaidEngine | None) -> bool:
    said = engine.kv_cache.enable_prefix_caching if engine and engine.kv_cache else None
    return said is not False


def _with_points(config: BenchConfig, found: _Artifact) -> BenchConfig:
    rows = {row.point.benchmark_id: row.point for row in (*found.results, *found.skipped_points)}
    points = [rows[number] for number in sorted(rows)]
    if not points or not all(EXPLICIT in point.sample_reasons for point in points):
        return config
    file = points_from(msgspec.json.decode(msgspec.json.encode(file_of(points))))
    return msgspec.structs.replace(config, points=file)
