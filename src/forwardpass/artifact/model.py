"""Knows what a rank's file and a merged file hold, key by key, in schema version 2.

A writer builds these structs; a reader gets the parsed mapping as well, since files of other versions have
keys that are not here. A key that is ``UNSET`` is missing in the file, which is not the same as null.

History of ``SCHEMA_VERSION``: 2 (with and without the protocol, the evidence and the engine block).
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from forwardpass.artifact.blocks import (
    Capacity,
    ConfigBlock,
    Coverage,
    CudaGraphs,
    DpBlock,
    DpMerged,
    IterationGroup,
    KvWarm,
    Limits,
    MeasurementPolicy,
    MergedRow,
    MergedTiming,
    RecurrentState,
    ResultRow,
    SkippedPoint,
    Status,
    Synchronization,
    SyntheticPrompts,
    Timing,
)
from forwardpass.artifact.engine import EngineBlock
from forwardpass.bench.evidence import MeasurementProtocol, WarmupLedger

__all__ = ["SCHEMA_VERSION", "MergedArtifact", "RankArtifact"]

SCHEMA_VERSION: Literal[2] = 2


class _Common(Struct, frozen=True, kw_only=True):
    """What both kinds of file hold alike."""

    schema_version: Literal[2]
    status: Status | UnsetType = UNSET
    """Files from before it existed: complete if ``valid``, else failed."""
    valid: bool
    usable: bool | UnsetType = UNSET
    stop_reason: str | None
    timing_valid: bool
    run_id: str
    """32 hexadecimal digits; rank 0's on all ranks."""
    grid_digest: str | None
    """Null if the grid was never built."""
    synchronization: Synchronization
    coverage: Coverage
    config: ConfigBlock
    limits: Limits
    recurrent_state: RecurrentState
    measurement_policy: MeasurementPolicy
    synthetic_prompts: SyntheticPrompts
    capacity: Capacity
    cudagraph: CudaGraphs
    iteration_groups: tuple[IterationGroup, ...]
    """All ranks' passes, point by point, in the order of execution."""
    skipped_points: tuple[SkippedPoint, ...]
    missing_phases: tuple[Literal["prefill", "decode"], ...]
    error: str | None
    kvwarm: KvWarm | UnsetType = UNSET
    """Only if the warm-up with real KV was considered."""
    measurement_protocol: MeasurementProtocol | UnsetType = UNSET
    """Missing in files of ai-dynamo 1.6.1 and older: nothing is claimed then."""
    engine: EngineBlock | UnsetType = UNSET
    """Missing if it was never captured."""


class RankArtifact(_Common, frozen=True, kw_only=True):
    """The file of one rank."""

    artifact_type: Literal["rank"]
    dp: DpBlock
    timing: Timing
    results: tuple[ResultRow, ...]
    """This rank's own passes, in the order of execution."""
    warmup_evidence: WarmupLedger | UnsetType = UNSET


class MergedArtifact(_Common, frozen=True, kw_only=True):
    """The file of all ranks together."""

    artifact_type: Literal["merged"]
    dp: DpMerged
    timing: MergedTiming
    results: tuple[MergedRow, ...]
    """By id, then by rank."""
    rank_files: tuple[str, ...]
    merged_output_path: str
    worker_probe_path: str | UnsetType = UNSET
    """Named before the file exists; only beside an engine block."""
    rank_warmup_evidence: dict[str, WarmupLedger] | UnsetType = UNSET
    """Rank -> its ledger; for ranks whose file was not read it says so."""
