"""Knows the seven agreements of a self-benchmark: what each compares, decides and accepts.

Rank 0 lists all that is wrong with the reports, not only the first. The others check that a decision is
consistent with what they reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from forwardpass.bench.limits import CapacityEnvelope
from forwardpass.bench.sync import messages as m
from forwardpass.bench.sync.rounds import Own, Pass, RoundKind, RoundSpec
from forwardpass.errors import OutOfLockstep

__all__ = ["BOUNDARY", "CAPACITY", "CLEANUP", "GO", "GRID", "RESULT", "SPECS", "STAGE"]

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_LARGEST = 2**63 - 1
_RUN_ID = re.compile(r"[0-9a-f]{32}\Z")

Problem = tuple[int, str, str]
"""Rank, what was expected of it, what was found."""


def _refuse(kind: RoundKind, problems: Sequence[Problem]) -> None:
    """Raise for all ``problems``, if there are any."""
    if problems:
        rank, expected, actual = problems[0]
        others = [
            f"rank {other}: expected {expected}, found {actual}" for other, expected, actual in problems[1:]
        ]
        raise OutOfLockstep(kind, rank, expected, actual, others)


def _text(value: Any) -> str:
    return m.shown(json.dumps(value, sort_keys=True, ensure_ascii=False))


def _nothing(*_: Any) -> None:
    """Have nothing to check."""


# --- capacity ----------------------------------------------------------------------------------------


def _check_capacity(reports: Mapping[int, m.Capacity]) -> None:
    problems: list[Problem] = []
    digest = reports[0].capacity.grid_invariants_digest
    for rank, report in reports.items():
        for name, value in structs.asdict(report.capacity).items():
            if isinstance(value, int) and not 0 <= value <= _LARGEST:
                problems.append((rank, f"{name} from 0 to {_LARGEST}", m.shown(str(value))))
        found = report.capacity.grid_invariants_digest
        if not _DIGEST.match(found):
            problems.append((rank, "grid_invariants_digest of 64 hexadecimal digits", repr(m.shown(found))))
        elif rank and found != digest:
            expected = f"grid_invariants_digest {m.shown(digest)}, as rank 0 has (engines and options alike)"
            problems.append((rank, expected, found))
    _refuse(RoundKind.CAPACITY, problems)


def _decide_capacity(reports: Mapping[int, m.Capacity], own: Own) -> m.CapacityResult:
    common = CapacityEnvelope.common([report.capacity for report in reports.values()])
    return m.CapacityResult(benchmark_id=0, capacity=common)


def _accept_capacity(report: m.Capacity, answer: m.CapacityResult, own: Own) -> None:
    least = CapacityEnvelope.common([report.capacity, _alike(answer.capacity, report.capacity)])
    if least != answer.capacity:
        raise OutOfLockstep(
            RoundKind.CAPACITY,
            0,
            f"at most what rank {own.rank} can hold, {_text(structs.asdict(report.capacity))}",
            _text(structs.asdict(answer.capacity)),
        )


def _alike(one: CapacityEnvelope, other: CapacityEnvelope) -> CapacityEnvelope:
    return structs.replace(one, grid_invariants_digest=other.grid_invariants_digest)


# --- grid --------------------------------------------------------------------------------------------


def _check_grid(reports: Mapping[int, m.Grid]) -> None:
    names = ("grid_digest", "expected_points", "missing_phases")
    facts = {rank: {name: getattr(report, name) for name in names} for rank, report in reports.items()}
    _refuse(
        RoundKind.GRID,
        [
            (rank, f"rank 0's grid {_text(facts[0])}", _text(mine))
            for rank, mine in facts.items()
            if mine != facts[0]
        ],
    )


def _commit_grid(reports: Mapping[int, m.Grid], own: Own) -> m.GridCommit:
    return m.GridCommit(benchmark_id=0)


# --- a point -----------------------------------------------------------------------------------------


def _check_ready(reports: Mapping[int, m.Ready]) -> None:
    problems: list[Problem] = []
    first = reports[0]
    for rank, report in reports.items():
        if report.validation_error is not None:
            problems.append((rank, "a pass that fits the point", m.shown(report.validation_error)))
        if report.point_digest != first.point_digest:
            problems.append((rank, f"point {m.shown(first.point_digest)}", m.shown(report.point_digest)))
        if report.output_summary != first.output_summary:
            problems.append((rank, f"a pass of {_text(first.output_summary)}", _text(report.output_summary)))
    _refuse(RoundKind.GO, problems)


def _decide_go(reports: Mapping[int, m.Ready], own: Own) -> m.Go:
    return m.Go(benchmark_id=reports[0].benchmark_id, run_id=own.run_id or "")


def _accept_go(report: m.Ready, answer: m.Go, own: Own) -> None:
    if not _RUN_ID.match(answer.run_id):
        expected = "a run_id of 32 hexadecimal digits"
        raise OutOfLockstep(RoundKind.GO, 0, expected, repr(m.shown(answer.run_id)))
    if own.run_id is not None and answer.run_id != own.run_id:
        raise OutOfLockstep(RoundKind.GO, 0, f"run_id {own.run_id}", answer.run_id)


def _check_result(reports: Mapping[int, m.Result]) -> None:
    digest = reports[0].point_digest
    _refuse(
        RoundKind.RESULT,
        [
            (rank, f"point {m.shown(digest)}", m.shown(report.point_digest))
            for rank, report in reports.items()
            if report.point_digest != digest
        ],
    )


def _decide_result(reports: Mapping[int, m.Result], own: Own) -> m.GroupDecision:
    return m.GroupDecision(
        benchmark_id=reports[0].benchmark_id,
        rank_results=tuple(m.RankResult(rank, report.fpms) for rank, report in reports.items()),
        stop_requested=own.stop or any(report.stop_requested for report in reports.values()),
    )


def _accept_result(report: m.Result, answer: m.GroupDecision, own: Own) -> None:
    ranks = [result.dp_rank for result in answer.rank_results]
    if ranks != list(range(own.size)):
        expected = f"results of ranks 0 to {own.size - 1} in order"
        raise OutOfLockstep(RoundKind.RESULT, 0, expected, m.shown(str(ranks)))
    if answer.rank_results[own.rank].fpms != report.fpms:
        expected = f"what rank {own.rank} measured"
        raise OutOfLockstep(RoundKind.RESULT, 0, expected, _text(answer.rank_results[own.rank].fpms))
    _accept_stop(RoundKind.RESULT, answer.stop_requested, own)


# --- stopping ----------------------------------------------------------------------------------------


def _decide_boundary(reports: Mapping[int, m.Boundary], own: Own) -> m.BoundaryDecision:
    return m.BoundaryDecision(
        benchmark_id=reports[0].benchmark_id,
        stop_requested=own.stop or any(report.stop_requested for report in reports.values()),
    )


def _accept_boundary(report: m.Boundary, answer: m.BoundaryDecision, own: Own) -> None:
    _accept_stop(RoundKind.BOUNDARY, answer.stop_requested, own)


def _accept_stop(kind: RoundKind, stops: bool, own: Own) -> None:
    if own.stop and not stops:
        raise OutOfLockstep(kind, 0, f"a stop, which rank {own.rank} asked for", "none")


# --- warm-up chains, and the end -----------------------------------------------------------------------


def _check_stage(reports: Mapping[int, m.StageRound]) -> None:
    problems: list[Problem] = []
    first = reports[0]
    for rank, report in reports.items():
        if (report.seq, report.batch) != (first.seq, first.batch):
            expected = f"idle step {first.seq} with batch {first.batch}"
            problems.append((rank, expected, f"idle step {report.seq} with batch {report.batch}"))
        if (report.ok is not None) != (report.phase is m.StagePhase.DONE):
            expected = "an outcome if and only if the phase is 'done'"
            problems.append((rank, expected, f"phase '{report.phase}' with outcome {report.ok}"))
    _refuse(RoundKind.STAGE, problems)


def _decide_stage(reports: Mapping[int, m.StageRound], own: Own) -> m.StageRoundResult:
    all_done = all(report.phase is m.StagePhase.DONE for report in reports.values())
    ok = all(report.ok for report in reports.values()) if all_done else None
    return m.StageRoundResult(benchmark_id=0, seq=reports[0].seq, all_done=all_done, ok=ok)


def _accept_stage(report: m.StageRound, answer: m.StageRoundResult, own: Own) -> None:
    if answer.seq != report.seq:
        raise OutOfLockstep(RoundKind.STAGE, 0, f"idle step {report.seq}", f"idle step {answer.seq}")
    built = report.phase is m.StagePhase.DONE
    wrong = (answer.ok is not None) != answer.all_done or (answer.all_done and not built)
    if wrong or (answer.ok and not report.ok):
        expected = f"a verdict that fits phase '{report.phase}' with outcome {report.ok}"
        raise OutOfLockstep(RoundKind.STAGE, 0, expected, f"all_done {answer.all_done}, ok {answer.ok}")


def _complete_cleanup(reports: Mapping[int, m.CleanupReady], own: Own) -> m.CleanupComplete:
    return m.CleanupComplete(benchmark_id=0)


CAPACITY = RoundSpec(
    kind=RoundKind.CAPACITY,
    report=m.Capacity,
    passes=(Pass(m.CapacityResult, m.CapacityAck),),
    commit=m.CapacityCommit,
    decided_at=0,
    check=_check_capacity,
    decide=_decide_capacity,
    accept=_accept_capacity,
    long_first=True,
    grace=False,
)
GRID = RoundSpec(
    kind=RoundKind.GRID,
    report=m.Grid,
    passes=(Pass(m.GridPrepare, m.GridAck),),
    commit=m.GridCommit,
    decided_at=1,
    check=_check_grid,
    decide=_commit_grid,
    accept=_nothing,
    grace=False,
)
GO = RoundSpec(
    kind=RoundKind.GO,
    report=m.Ready,
    passes=(Pass(m.Prepare, m.Prepared), Pass(m.Arm, m.Armed)),
    commit=m.Go,
    decided_at=2,
    check=_check_ready,
    decide=_decide_go,
    accept=_accept_go,
    one_deadline=True,
)
RESULT = RoundSpec(
    kind=RoundKind.RESULT,
    report=m.Result,
    passes=(Pass(m.GroupPrepare, m.GroupPrepared, asks_stop=True), Pass(m.GroupDecision, m.GroupAck)),
    commit=m.GroupCommit,
    decided_at=1,
    check=_check_result,
    decide=_decide_result,
    accept=_accept_result,
)
BOUNDARY = RoundSpec(
    kind=RoundKind.BOUNDARY,
    report=m.Boundary,
    passes=(
        Pass(m.BoundaryPrepare, m.BoundaryPrepared, asks_stop=True),
        Pass(m.BoundaryDecision, m.BoundaryAck),
    ),
    commit=m.BoundaryCommit,
    decided_at=1,
    check=_nothing,
    decide=_decide_boundary,
    accept=_accept_boundary,
)
STAGE = RoundSpec(
    kind=RoundKind.STAGE,
    report=m.StageRound,
    passes=(),
    commit=m.StageRoundResult,
    decided_at=0,
    check=_check_stage,
    decide=_decide_stage,
    accept=_accept_stage,
    grace=False,
)
CLEANUP = RoundSpec(
    kind=RoundKind.CLEANUP,
    report=m.CleanupReady,
    passes=(Pass(m.CleanupRelease, m.CleanupAck),),
    commit=m.CleanupComplete,
    decided_at=1,
    check=_nothing,
    decide=_complete_cleanup,
    accept=_nothing,
)
SPECS: tuple[RoundSpec[Any, Any], ...] = (CAPACITY, GRID, GO, RESULT, BOUNDARY, STAGE, CLEANUP)
