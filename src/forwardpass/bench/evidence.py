"""Knows what a run records beside its numbers: samples, dispatch, prompts, warm-ups, and the protocol.

The structs encode to the documented JSON of an artifact. What was not observed is a value of its own
(:class:`Unavailable`, :class:`UnavailablePrompts`, :class:`UnavailableWarmups`), never a default.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from forwardpass.wire.schema import ForwardPassMetrics
from forwardpass.wire.validate import CanonicalQueued, CanonicalScheduled

__all__ = [
    "EXECUTION_EVIDENCE",
    "NO_DISPATCH",
    "NO_PROMPTS",
    "NO_WARMUPS",
    "UNOBSERVED",
    "Basis",
    "BenchmarkFpm",
    "BenchmarkSample",
    "Count",
    "Dispatch",
    "Estimate",
    "ExecutionEvidence",
    "Measurement",
    "MeasurementProtocol",
    "Method",
    "Observed",
    "PointPreparation",
    "PromptRequest",
    "Prompts",
    "ProtocolPreparation",
    "RecordedPrompts",
    "RecordedWarmups",
    "SampleTiming",
    "SyntheticContent",
    "Unavailable",
    "UnavailablePrompts",
    "UnavailableWarmups",
    "ValidationStatus",
    "WarmupKind",
    "WarmupLedger",
    "WarmupRecord",
    "WarmupStatus",
    "WarmupValidation",
    "bench_fpm",
    "measurement_protocol",
]

Count = Annotated[int, Meta(ge=0)]
SyntheticContent = Literal["random", "sharegpt", "sharegpt_chain", "zeros"]


class Basis(StrEnum):
    """Between which two moments a sample's wall time lies."""

    SCHEDULE_TO_OUTPUT = "schedule_to_output"
    INTER_OUTPUT = "inter_output"


class Method(StrEnum):
    """How the retained number came of the raw samples."""

    SINGLE_STEP = "single_step"
    LAST_STEP = "last_step"
    ADJACENT_UPPER_MEDIAN = "adjacent_upper_median"


class SampleTiming(Struct, frozen=True):
    """Both ends of a sample, in seconds of this process's monotonic clock: of no use in another process."""

    basis: Basis
    start_monotonic: float | None
    """``None``: the start was not observed, and the wall time is 0."""
    end_monotonic: float


class Observed(Struct, frozen=True, tag_field="status", tag="observed"):
    """How the engine said that it dispatched a pass."""

    runtime_mode: str
    num_unpadded_tokens: Count
    num_padded_tokens: Count
    num_paddings: Count


class Unavailable(Struct, frozen=True, tag_field="status", tag="unavailable"):
    """The engine said nothing about the dispatch of a pass: every field is null."""

    runtime_mode: None
    num_unpadded_tokens: None
    num_padded_tokens: None
    num_paddings: None


NO_DISPATCH = Unavailable(None, None, None, None)

Dispatch = Observed | Unavailable


class BenchmarkSample(Struct, frozen=True):
    """What is known of one raw forward pass of a point."""

    sample_index: Count
    """Its place among the point's samples, from 0."""
    forward_index: Count
    """The rank's own count of nonempty passes while the benchmark runs, from 0, warm-ups included."""
    timing: SampleTiming
    cudagraph: Dispatch


class Estimate(Struct, frozen=True):
    """How the retained number was made, and of which samples."""

    method: Method
    raw_sample_indices: tuple[Count, ...]


class PromptRequest(Struct, frozen=True):
    """The identity of one injected prompt: SHA-256 of its token ids as unsigned 32-bit little-endian."""

    slot: Count
    num_tokens: Count
    sha256: str


class RecordedPrompts(Struct, frozen=True, tag_field="status", tag="recorded"):
    """What was injected; ``sha256`` is that of the canonical JSON of ``requests``."""

    sha256: str
    requests: tuple[PromptRequest, ...]


class UnavailablePrompts(Struct, frozen=True, tag_field="status", tag="unavailable"):
    """It is not known what was injected."""

    sha256: None
    requests: Annotated[tuple[PromptRequest, ...], Meta(max_length=0)]


NO_PROMPTS = UnavailablePrompts(None, ())

Prompts = RecordedPrompts | UnavailablePrompts


class PointPreparation(Struct, frozen=True):
    """What went before a point on its rank."""

    grid_digest: str
    completed_points_before: Count
    kv_seed_regime: str
    warmup_records_before: Count | None
    """Attempts that had begun, failed ones included; ``None`` where there is no ledger."""


class Measurement(Struct, frozen=True):
    """``benchmark_measurement``: where a retained number comes from."""

    schema_version: Literal[1]
    point_key: str
    """Of the recorded coordinate."""
    dp_rank: Count
    prompts: Prompts
    preparation: PointPreparation
    expected_internal_samples: Count
    """Admission included."""
    raw_fpms: tuple[BenchmarkFpm, ...]
    """All samples before reduction, in the order of collection."""
    estimate: Estimate


class BenchmarkFpm(Struct, frozen=True):
    """A forward pass of a benchmark: every field of the wire is there, ``counter_id`` is the point's id."""

    version: Literal[1]
    worker_id: str
    dp_rank: Count
    counter_id: Count
    wall_time: Annotated[float, Meta(ge=0)]
    """Seconds."""
    scheduled_requests: CanonicalScheduled
    queued_requests: CanonicalQueued
    kvwarm_giant_median_of: Count | UnsetType = UNSET
    """Of how many samples the wall time is the upper median."""
    kvwarm_steady_sample: bool | UnsetType = UNSET
    benchmark_sample: BenchmarkSample | UnsetType = UNSET
    """In raw samples alone."""
    benchmark_measurement: Measurement | UnsetType = UNSET
    """In the retained pass alone."""


def bench_fpm(
    metrics: ForwardPassMetrics,
    *,
    sample: BenchmarkSample | UnsetType = UNSET,
    measurement: Measurement | UnsetType = UNSET,
) -> BenchmarkFpm:
    """Return a live message as a benchmark's artifact holds it."""
    return BenchmarkFpm(
        version=1,
        worker_id=metrics.worker_id,
        dp_rank=metrics.dp_rank,
        counter_id=metrics.counter_id,
        wall_time=metrics.wall_time,
        scheduled_requests=msgspec.convert(
            metrics.scheduled_requests, CanonicalScheduled, from_attributes=True
        ),
        queued_requests=msgspec.convert(metrics.queued_requests, CanonicalQueued, from_attributes=True),
        benchmark_sample=sample,
        benchmark_measurement=measurement,
    )


# --- warm-ups ---------------------------------------------------------------------------------------


class WarmupKind(StrEnum):
    """What was run before something is measured."""

    GLOBAL = "global"
    EAGER_SHAPE = "eager_shape"
    """A replica of a shape without a graph, thrown away."""
    REAL_PREFIX_SEED = "real_prefix_seed"
    REAL_PREFIX_SHAPE = "real_prefix_shape"


class WarmupStatus(StrEnum):
    """How an attempt ended. ``completed`` says nothing about graphs, kernels or caches."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class ValidationStatus(StrEnum):
    """Whether the shape that ran was checked."""

    NOT_PERFORMED = "not_performed"
    PASSED = "passed"
    FAILED = "failed"


class WarmupValidation(Struct, frozen=True):
    """The check of a warm-up's shape. The last two fields are there only if a replica reached its check."""

    status: ValidationStatus
    reason: str | None
    scope: str | UnsetType = UNSET
    failed_dp_rank: Count | UnsetType | None = UNSET


class WarmupRecord(Struct, frozen=True):
    """One attempt to warm up."""

    kind: WarmupKind
    requested_shape: dict[str, Any]
    """``global``: prompt_lengths, max_tokens; ``eager_shape``: the point; else point and prompt_lengths."""
    status: WarmupStatus
    validation: WarmupValidation
    forward_index_start: Count | None
    """Inclusive; ``None``: none observed."""
    forward_index_end: Count | None
    """Exclusive; ``None``: not finished."""
    completed_points_before: Count
    observed_forward_count: Count | None
    first_scheduled_requests: dict[str, Any] | None
    """``scheduled_requests`` of the first pass; ``None`` if there was none."""
    last_scheduled_requests: dict[str, Any] | None


class RecordedWarmups(Struct, frozen=True, tag_field="status", tag="recorded"):
    """All attempts, in the order in which they began; none is legitimate."""

    records: tuple[WarmupRecord, ...]


class UnavailableWarmups(Struct, frozen=True, tag_field="status", tag="unavailable"):
    """It is not known what was warmed up. ``reason`` stands in merged files, for ranks that were not read."""

    records: Annotated[tuple[WarmupRecord, ...], Meta(max_length=0)]
    reason: str | UnsetType = UNSET


NO_WARMUPS = UnavailableWarmups(())

WarmupLedger = RecordedWarmups | UnavailableWarmups


# --- the protocol -----------------------------------------------------------------------------------


class ExecutionEvidence(Struct, frozen=True, kw_only=True):
    """What the evidence of each pass means. A reader compares the whole object."""

    schema_version: Literal[1]
    sample_field: Literal["benchmark_sample"]
    warmup_field: Literal["warmup_evidence"]
    forward_index_scope: Literal["rank_process"]
    timing_clock: Literal["process_local_monotonic"]
    cudagraph_source: Literal["ModelRunnerOutput.cudagraph_stats"]
    warmup_scope: Literal["request_completion_and_existing_shape_validation"]


EXECUTION_EVIDENCE = ExecutionEvidence(
    schema_version=1,
    sample_field="benchmark_sample",
    warmup_field="warmup_evidence",
    forward_index_scope="rank_process",
    timing_clock="process_local_monotonic",
    cudagraph_source="ModelRunnerOutput.cudagraph_stats",
    warmup_scope="request_completion_and_existing_shape_validation",
)

UNOBSERVED = (
    "sampled_continuation_token_ids",
    "kv_cache_tensors",
    "recurrent_state_tensors",
    "execution_history_equivalence",
    "warmup_graph_kernel_and_cache_equivalence",
    "decode_real_kv_chain_warmup_history",
)
"""What equal evidence says nothing about."""


class ProtocolPreparation(Struct, frozen=True, kw_only=True):
    """How points are prepared, as the switches say; not what was eligible."""

    warmup_iterations: Count
    prefill_real_seed: bool
    decode_real_kv_warmup: bool
    giant_kv_threshold: Count
    giant_kv_repeats: Count


class MeasurementProtocol(Struct, frozen=True, kw_only=True):
    """``measurement_protocol``: what must be the same on all ranks for their numbers to belong together."""

    schema_version: Literal[1]
    content_identity: Literal["coordinate_rank_slot_v1"]
    content_seed: str
    synthetic_content: SyntheticContent
    synthetic_pool_tag: str
    prompt_hash_encoding: Literal["uint32_le"]
    independent_repetitions: Literal[1]
    timing_metric: Literal["scheduler_wall_time"]
    execution_evidence: ExecutionEvidence | UnsetType = UNSET
    """Missing in files from before it existed; new ones always have it."""
    input_evidence_scope: Literal["injected_prompt_token_ids"]
    unobserved: tuple[str, ...]
    preparation: ProtocolPreparation


def measurement_protocol(
    *, seed: str, content: SyntheticContent, pool_tag: str, preparation: ProtocolPreparation
) -> MeasurementProtocol:
    """Return the protocol of a run made here."""
    return MeasurementProtocol(
        schema_version=1,
        content_identity="coordinate_rank_slot_v1",
        content_seed=seed,
        synthetic_content=content,
        synthetic_pool_tag=pool_tag,
        prompt_hash_encoding="uint32_le",
        independent_repetitions=1,
        timing_metric="scheduler_wall_time",
        execution_evidence=EXECUTION_EVIDENCE,
        input_evidence_scope="injected_prompt_token_ids",
        unobserved=UNOBSERVED,
        preparation=preparation,
    )
