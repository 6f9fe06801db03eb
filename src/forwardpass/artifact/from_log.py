"""Knows how the log of one rank's run becomes its artifact: rows and groups as ranks exchanged them, and
facts.

What one rank says of another is what that one says of itself: the rows are the ones that they exchanged.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from forwardpass.artifact.blocks import (
    Capacity,
    ConfigBlock,
    CudaGraphs,
    DpBlock,
    IterationGroup,
    KvWarm,
    Limits,
    MeasurementPolicy,
    PointRecord,
    RankResult,
    RecurrentState,
    ResultRow,
    SkippedPoint,
    Synchronization,
    SyntheticPrompts,
)
from forwardpass.artifact.build import RunFacts, RunOutcome, build_rank_artifact
from forwardpass.artifact.engine import EngineBlock
from forwardpass.artifact.model import RankArtifact
from forwardpass.bench.config import BenchConfig
from forwardpass.bench.digest import record
from forwardpass.bench.engine_config import effective_config
from forwardpass.bench.evidence import BenchmarkFpm, MeasurementProtocol
from forwardpass.bench.grid import feasible_max_batch
from forwardpass.bench.limits import CapacityEnvelope, EngineLayout
from forwardpass.bench.points import Phase, Point
from forwardpass.bench.runlog import Measured, RunLog, Skipped

__all__ = ["RankFacts", "artifact_of"]

POLICY = MeasurementPolicy(decode="steady_state_second_step", prefill="single_step")


class RankFacts(Struct, frozen=True, kw_only=True):
    """What an artifact says of the rank and its engine besides the run."""

    config: BenchConfig
    output_path: str
    """The rank's own."""
    layout: EngineLayout
    capacity: CapacityEnvelope
    """What this rank could hold, before the ranks agreed."""
    protocol: MeasurementProtocol
    num_blocks: int | None
    vocab_size: int | None
    prompt_mode: Literal["salted_random", "zeros"] = "salted_random"
    sync_port: int | None = None
    kvwarm: KvWarm | None = None
    """Whether real KV was considered, and what came of it; the counts of points are filled in here."""
    engine: EngineBlock | None = None
    recurrent_state: Literal["random", "unchanged"] = "unchanged"


def artifact_of(log: RunLog, facts: RankFacts) -> RankArtifact:
    """Return the artifact of the rank that wrote ``log``. Raises ``msgspec.ValidationError`` for a row that
    is not what the format says, which is a bug of ours.
    """
    synchronization = Synchronization(
        enabled=log.dp_size > 1,
        coordinator_rank=0,
        port=facts.sync_port if log.dp_size > 1 else None,
    )
    known = RunFacts(
        run_id=log.run_id,
        dp=DpBlock(rank=log.dp_rank, size=log.dp_size),
        synchronization=synchronization,
        config=msgspec.convert(effective_config(facts.config, facts.output_path), ConfigBlock),
        limits=_limits(log, facts),
        recurrent_state=_recurrent_state(facts),
        measurement_policy=POLICY,
        synthetic_prompts=SyntheticPrompts(mode=facts.prompt_mode, vocab_size=facts.vocab_size),
        cudagraph=_graphs(facts),
        measurement_protocol=facts.protocol,
        engine=facts.engine if facts.engine is not None else UNSET,
    )
    return build_rank_artifact(known, _outcome(log, facts))


def _outcome(log: RunLog, facts: RankFacts) -> RunOutcome:
    grid = log.grid
    return RunOutcome(
        grid_digest=grid.digest if grid is not None else None,
        capacity=Capacity(common=None if log.capacity is None else msgspec.to_builtins(log.capacity)),
        expected_points=grid.expected_points if grid is not None else 0,
        results=[_row(row, log.dp_rank) for row in log.measured],
        iteration_groups=[_group(row, log.dp_size) for row in log.measured],
        skipped_points=[_skipped(skip) for skip in log.skipped],
        missing_phases=[phase.value for phase in grid.missing_phases] if grid is not None else [],
        warmup_evidence=log.warmups.ledger(),
        started_at=_stamp(log.started_at_unix_ms),
        completed_at=_stamp(log.completed_at_unix_ms),
        elapsed_seconds=log.elapsed_seconds,
        stopped=log.stopped,
        error=log.error,
        kvwarm=_kvwarm(log, facts),
    )


def _point(point: Point) -> PointRecord:
    return msgspec.convert(record(point), PointRecord)


def _row(row: Measured, dp_rank: int) -> ResultRow:
    own = msgspec.convert(row.own(dp_rank), BenchmarkFpm)
    return ResultRow(point=_point(row.point), kv_seed_regime=row.kv_seed_regime, fpms=(own,))


def _group(row: Measured, dp_size: int) -> IterationGroup:
    return IterationGroup(
        benchmark_id=row.point.benchmark_id,
        point=_point(row.point),
        expected_dp_ranks=tuple(range(dp_size)),
        complete=True,
        wall_time=row.wall_time,
        rank_results=tuple(
            RankResult(dp_rank=rank.dp_rank, fpms=msgspec.convert(rank.fpms, tuple[BenchmarkFpm, ...]))
            for rank in row.ranks
        ),
    )


def _skipped(skip: Skipped) -> SkippedPoint:
    return SkippedPoint(
        point=_point(skip.point), kv_seed_regime=skip.kv_seed_regime, reason=skip.reason.value
    )


def _limits(log: RunLog, facts: RankFacts) -> Limits:
    own = facts.capacity
    decodes = log.grid is not None and Phase.DECODE in facts.config.mode.phases
    common = log.capacity or own
    feasible = feasible_max_batch(facts.layout, common, facts.config.max_batch_size) if decodes else 0
    return Limits(
        max_num_scheduled_tokens=own.max_num_scheduled_tokens,
        max_num_running_reqs=own.max_num_running_reqs,
        max_model_len=own.max_model_len,
        block_size=facts.layout.block_size,
        num_gpu_blocks=facts.num_blocks,
        configured_max_batch_size=own.max_num_running_reqs,
        feasible_max_batch_size=feasible,
    )


def _recurrent_state(facts: RankFacts) -> RecurrentState:
    if facts.recurrent_state == "unchanged":
        return RecurrentState(initialization="unchanged", policy=None, uniform_bound=None)
    return RecurrentState(initialization="random", policy="uniform-request-layer-rank-v1", uniform_bound=0.01)


def _graphs(facts: RankFacts) -> CudaGraphs:
    graph = facts.layout.graph
    return CudaGraphs(
        mode=graph.mode,
        prefill_mode=graph.prefill_mode.value,
        decode_mode=graph.decode_mode.value,
        max_capture_size=max(graph.capture_sizes, default=0),
        capture_sizes=graph.capture_sizes,
        prefill_capture_sizes=graph.prefill_captures(),
        decode_capture_sizes=graph.decode_captures(facts.capacity.max_num_running_reqs),
    )


def _kvwarm(log: RunLog, facts: RankFacts) -> KvWarm | UnsetType:
    if facts.kvwarm is None:
        return UNSET
    regimes = [row.kv_seed_regime for row in log.measured if row.point.point_type is Phase.DECODE]
    return msgspec.structs.replace(
        facts.kvwarm,
        points_real_kv=sum(regime.startswith("real") for regime in regimes),
        points_fake_fallback=sum(regime.startswith("fake") for regime in regimes),
    )


def _stamp(unix_ms: int | None) -> str | None:
    if unix_ms is None:
        return None
    moment = datetime.fromtimestamp(unix_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
