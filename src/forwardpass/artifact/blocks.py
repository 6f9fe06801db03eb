"""Knows the small blocks of an artifact: timing, coverage, limits, options, and the rows of results."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from forwardpass.bench.evidence import BenchmarkFpm, Count
from forwardpass.bench.points import Phase

__all__ = [
    "Capacity",
    "ConfigBlock",
    "Coverage",
    "CudaGraphs",
    "DpBlock",
    "DpMerged",
    "IterationGroup",
    "KvWarm",
    "Limits",
    "MeasurementPolicy",
    "MergedRow",
    "MergedTiming",
    "PointRecord",
    "RankPointRecord",
    "RankResult",
    "RecurrentState",
    "ResultRow",
    "SkippedPoint",
    "Status",
    "Synchronization",
    "SyntheticPrompts",
    "Timing",
]

Seconds = Annotated[float, Meta(ge=0)]
Size = Annotated[int, Meta(ge=1)]


class Status(StrEnum):
    """How a run ended."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    """It was stopped in time, and what it has is sound."""
    FAILED = "failed"


class Timing(Struct, frozen=True, kw_only=True):
    """When a rank ran and how long it took."""

    started_at: str | None
    """RFC 3339, UTC, with ``Z``."""
    completed_at: str | None
    benchmark_elapsed_seconds: Seconds | None
    """From the first benchmark step to the end, by a monotonic clock."""
    measured_iteration_seconds: Seconds
    """The sum of the groups' wall times."""


class MergedTiming(Timing, frozen=True, kw_only=True):
    """The slowest rank's, and how long each took."""

    rank_benchmark_elapsed_seconds: dict[str, Seconds]


class DpBlock(Struct, frozen=True, kw_only=True):
    """Which data-parallel rank wrote a file, and of how many."""

    rank: Count
    size: Size


class DpMerged(Struct, frozen=True, kw_only=True):
    """Which ranks a merged file is about (``ranks``), and whose files were read (``source_ranks``)."""

    ranks: tuple[Count, ...]
    source_ranks: tuple[Count, ...]
    managed_size: Size
    global_size: Size


class Synchronization(Struct, frozen=True, kw_only=True):
    """How the ranks kept in step."""

    enabled: bool
    coordinator_rank: Count
    port: Count | None


class Coverage(Struct, frozen=True, kw_only=True):
    """Points, replicas left out."""

    expected_points: Count
    completed_points: Count
    skipped_points: Count


class ConfigBlock(Struct, frozen=True, kw_only=True):
    """The options in effect."""

    mode: Literal["prefill", "decode", "agg"]
    randomize_kda_state: bool
    hybrid_live_state: bool
    warmup_iterations: Count
    output_path: str
    timeout: Annotated[float, Meta(gt=0)]
    """Seconds."""
    prefill_max_new_token_samples: Count
    prefill_max_kv_read_token_samples: Count
    decode_max_kv_read_token_samples: Count
    decode_max_batch_size_samples: Count
    prefix_max_batch_size_samples: Count
    max_batch_size: Size | None
    collect_imbalanced: bool


class Limits(Struct, frozen=True, kw_only=True):
    """This rank's own limits, before the ranks agreed on common ones."""

    max_num_scheduled_tokens: Count
    max_num_running_reqs: Count
    max_model_len: Count
    block_size: Count
    num_gpu_blocks: Count | None
    configured_max_batch_size: Count
    feasible_max_batch_size: Count
    """For decode; 0 if it was not worked out."""


class RecurrentState(Struct, frozen=True, kw_only=True):
    """What recurrent states held."""

    initialization: Literal["random", "unchanged"]
    policy: str | None
    uniform_bound: float | None


class MeasurementPolicy(Struct, frozen=True, kw_only=True):
    """Which step of a point is kept."""

    decode: str
    prefill: str


class SyntheticPrompts(Struct, frozen=True, kw_only=True):
    """What prompts are made of."""

    mode: Literal["salted_random", "zeros"]
    vocab_size: Count | None


class Capacity(Struct, frozen=True, kw_only=True):
    """What the ranks agreed on: the fields of :class:`~forwardpass.bench.limits.CapacityEnvelope`."""

    common: dict[str, Any] | None


class CudaGraphs(Struct, frozen=True, kw_only=True):
    """The CUDA graphs that the grid reckons with."""

    mode: str
    prefill_mode: str
    decode_mode: str
    max_capture_size: Count | None
    capture_sizes: tuple[Count, ...]
    prefill_capture_sizes: tuple[Count, ...]
    decode_capture_sizes: tuple[Count, ...]


class KvWarm(Struct, frozen=True, kw_only=True):
    """The warm-up of decode points with real KV: whether it was possible, and what it did."""

    enabled: bool
    warm_eligible: bool | None
    skip_reason: str | None
    dataset: dict[str, Any] | None
    """path, sha256, collection_pool, conversations."""
    stages: tuple[dict[str, Any], ...]
    points_real_kv: Count
    points_fake_fallback: Count
    giant_kv_threshold: Count
    giant_kv_repeats: Count
    capacity_fallbacks: tuple[dict[str, Any], ...] | UnsetType = UNSET
    initialization_strategy: str | UnsetType = UNSET


# --- rows -------------------------------------------------------------------------------------------


class PointRecord(Struct, frozen=True, kw_only=True):
    """A point as a file holds it; all fields are there. The planner's is ``bench.points.Point``."""

    point_type: Phase
    benchmark_id: Size
    total_prefill_tokens: Count
    total_kv_read_tokens: Count
    batch_size: Size
    expected_cudagraph_mode: str
    expected_capture_size: Count | None
    padding_tokens: Count | None
    sample_reasons: tuple[str, ...]
    partition: dict[str, Any] | None
    rows: tuple[tuple[Count, Count], ...] | None


class RankPointRecord(PointRecord, frozen=True, kw_only=True):
    """A point in a row of a merged file."""

    dp_rank: Count


class ResultRow(Struct, frozen=True, kw_only=True):
    """What a rank retained of one point."""

    point: PointRecord
    kv_seed_regime: str | UnsetType = UNSET
    fpms: Annotated[tuple[BenchmarkFpm, ...], Meta(min_length=1, max_length=1)]


class MergedRow(Struct, frozen=True, kw_only=True):
    """What one rank retained of one point, in a merged file."""

    point: RankPointRecord
    fpms: Annotated[tuple[BenchmarkFpm, ...], Meta(min_length=1, max_length=1)]
    kv_seed_regime: str | UnsetType = UNSET


class RankResult(Struct, frozen=True, kw_only=True):
    """One rank's part of a group."""

    dp_rank: Count
    fpms: Annotated[tuple[BenchmarkFpm, ...], Meta(min_length=1, max_length=1)]


class IterationGroup(Struct, frozen=True, kw_only=True):
    """One point as all ranks ran it together."""

    benchmark_id: Size
    point: PointRecord
    expected_dp_ranks: tuple[Count, ...]
    complete: bool
    wall_time: Seconds
    """The slowest rank's."""
    rank_results: tuple[RankResult, ...]


class SkippedPoint(Struct, frozen=True, kw_only=True):
    """A point without a result, and why."""

    point: PointRecord
    kv_seed_regime: str | UnsetType = UNSET
    reason: str
