"""Knows how a rank's file comes of what its run has: counts, verdicts, and the text that is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from forwardpass.artifact.blocks import (
    Capacity,
    ConfigBlock,
    Coverage,
    CudaGraphs,
    DpBlock,
    IterationGroup,
    KvWarm,
    Limits,
    MeasurementPolicy,
    RecurrentState,
    ResultRow,
    SkippedPoint,
    Status,
    Synchronization,
    SyntheticPrompts,
    Timing,
)
from forwardpass.artifact.engine import EngineBlock
from forwardpass.artifact.json_text import indented
from forwardpass.artifact.model import SCHEMA_VERSION, RankArtifact
from forwardpass.atomic import write_atomically
from forwardpass.bench.evidence import MeasurementProtocol, WarmupLedger

__all__ = ["RunFacts", "RunOutcome", "build_rank_artifact", "rank_text", "write_rank_artifact"]

SLACK = 1e-12
"""By how much, in seconds, what was measured may exceed what elapsed."""


class RunFacts(Struct, frozen=True, kw_only=True):
    """What is known of a run before its first point."""

    run_id: str
    dp: DpBlock
    synchronization: Synchronization
    config: ConfigBlock
    limits: Limits
    recurrent_state: RecurrentState
    measurement_policy: MeasurementPolicy
    synthetic_prompts: SyntheticPrompts
    cudagraph: CudaGraphs
    measurement_protocol: MeasurementProtocol
    engine: EngineBlock | UnsetType = UNSET


class RunOutcome(Struct, frozen=True, kw_only=True):
    """What came of it."""

    grid_digest: str | None
    capacity: Capacity
    expected_points: int
    """Replicas left out."""
    results: Sequence[ResultRow]
    iteration_groups: Sequence[IterationGroup]
    skipped_points: Sequence[SkippedPoint]
    missing_phases: Sequence[Literal["prefill", "decode"]]
    warmup_evidence: WarmupLedger
    started_at: str | None
    """RFC 3339, UTC, with ``Z``."""
    completed_at: str | None
    elapsed_seconds: float | None
    stopped: bool
    """Whether the time limit ended it."""
    error: str | None
    kvwarm: KvWarm | UnsetType = UNSET


def build_rank_artifact(facts: RunFacts, outcome: RunOutcome) -> RankArtifact:
    """Return the file of a run, with its verdicts worked out."""
    completed, groups = len(outcome.results), outcome.iteration_groups
    measured = sum(group.wall_time for group in groups)
    timing = Timing(
        started_at=outcome.started_at,
        completed_at=outcome.completed_at,
        benchmark_elapsed_seconds=outcome.elapsed_seconds,
        measured_iteration_seconds=measured,
    )
    timing_valid = (
        None not in (timing.started_at, timing.completed_at)
        and outcome.elapsed_seconds is not None
        and measured <= outcome.elapsed_seconds + SLACK
    )
    sound = (
        outcome.error is None
        and not outcome.skipped_points
        and not outcome.missing_phases
        and len(groups) == completed
        and all(group.complete for group in groups)
        and timing_valid
    )
    status = _status(outcome, completed)
    return RankArtifact(
        schema_version=SCHEMA_VERSION,
        artifact_type="rank",
        kvwarm=outcome.kvwarm,
        status=status,
        valid=sound and completed == outcome.expected_points,
        usable=sound and completed > 0,
        stop_reason="timeout" if status is Status.PARTIAL else None,
        timing_valid=timing_valid,
        grid_digest=outcome.grid_digest,
        timing=timing,
        coverage=Coverage(
            expected_points=outcome.expected_points,
            completed_points=completed,
            skipped_points=len(outcome.skipped_points),
        ),
        warmup_evidence=outcome.warmup_evidence,
        capacity=outcome.capacity,
        results=tuple(outcome.results),
        iteration_groups=tuple(groups),
        skipped_points=tuple(outcome.skipped_points),
        missing_phases=tuple(outcome.missing_phases),
        error=outcome.error,
        **{name: getattr(facts, name) for name in facts.__struct_fields__},
    )


def rank_text(artifact: RankArtifact) -> bytes:
    """Return the file's text."""
    return indented(msgspec.json.encode(artifact), 0)


def write_rank_artifact(path: Path, artifact: RankArtifact) -> int:
    """Write the file whole or not at all; return its bytes. Raises :class:`ArtifactPathError`.

    A launcher takes the file's existence for the end of the run: it is written last.
    """
    return write_atomically(path, [rank_text(artifact)])


def _status(outcome: RunOutcome, completed: int) -> Status:
    if outcome.error is not None:
        return Status.FAILED
    missing = completed + len(outcome.skipped_points) < outcome.expected_points
    return Status.PARTIAL if outcome.stopped and missing else Status.COMPLETE
