"""Knows the whole run, from the first step to the last: agree, warm up, measure point after point, clean up.

It is a procedure like those of the points, only longer; ``session.py`` carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from forwardpass.bench import ops
from forwardpass.bench.context import RunContext
from forwardpass.bench.digest import record
from forwardpass.bench.evidence import PointPreparation, ValidationStatus, WarmupKind, WarmupValidation
from forwardpass.bench.grid import Grid
from forwardpass.bench.judge import Verdict, judge
from forwardpass.bench.limits import CapacityEnvelope
from forwardpass.bench.measurement import rekeyed, with_measurement
from forwardpass.bench.outcome import SkipReason
from forwardpass.bench.points import Point
from forwardpass.bench.procedures import Finished, measure, warm_up
from forwardpass.bench.runlog import Measured, Skipped
from forwardpass.bench.samples import reduce_samples
from forwardpass.bench.warmups import Warmup
from forwardpass.errors import BenchError, EngineError

__all__ = ["Agreement", "benchmark"]

Steps = Generator[ops.Op, Any, Any]
Agreement = Callable[[], tuple[CapacityEnvelope, Grid]]
"""Negotiates the capacity with the other ranks, builds the grid and compares it with theirs."""

_SCOPE = "attention_dp_group"


def benchmark(context: RunContext, agree: Agreement) -> Generator[ops.Op, Any, None]:
    """Run everything. Raises :class:`BenchError` for what no result can come of."""
    log = context.log
    context.began = context.last_progress = context.clock.monotonic()
    log.started_at_unix_ms = context.clock.unix_ms()
    log.capacity, log.grid = agree()
    yield from warm_up(context)
    yield from _points(context, log.grid)
    while not (yield ops.Settled()):
        yield ops.Turn()
    if not (yield ops.ResetCache()):
        raise EngineError("the prefix cache cannot be cleared: blocks of the benchmark are still in use")
    yield ops.Cleanup()


def _points(context: RunContext, grid: Grid) -> Steps:
    log = context.log
    for point in grid.points:
        if (yield ops.Boundary(point)):
            log.stopped = log.settled_points < grid.expected_points
            return
        stop = yield from _one(context, point)
        if stop and log.settled_points < grid.expected_points:
            log.stopped = True
            return


def _one(context: RunContext, point: Point) -> Steps:
    """Run, settle and clean up one point; return whether all ranks stop now."""
    log = context.log
    before = len(log.measured)
    context.point = point
    entry = _begin_replica(context, point) if point.is_replica else None
    try:
        finished = yield from measure(context, point)
        stop = yield from _settle(context, finished, entry, before)
    finally:
        context.current = None
    if finished.ids:
        yield ops.Release(finished.ids)
        yield ops.Turn()  # outputs that are still on their way arrive before the next point
    return stop


def _settle(context: RunContext, finished: Finished, entry: Warmup | None, before: int) -> Steps:
    """Exchange what was measured, judge it, and write it down; return whether all ranks stop now."""
    expected = context.current.expected if context.current is not None else 1
    if finished.skip is not None:
        _skip(context, finished, Verdict(finished.point, finished.skip), entry)
        return False
    samples, log = tuple(context.samples), context.log
    passes = with_measurement(
        finished.point,
        reduce_samples(samples, expected),
        samples,
        dp_rank=log.dp_rank,
        expected=expected,
        prompts=finished.prompts,
        preparation=PointPreparation(
            grid_digest=log.grid.digest if log.grid is not None else "",
            completed_points_before=before,
            kv_seed_regime=finished.regime.value,
            warmup_records_before=context.warmups_begun(),
        ),
    )
    ranks, stop = yield ops.Exchange(finished.point, passes)
    verdict = judge(finished.point, ranks, context.settings.giant_threshold)
    if verdict.skip is not None:
        _skip(context, finished, verdict, entry)
    elif entry is not None:
        _end_replica(context, entry, WarmupValidation(ValidationStatus.PASSED, None, _SCOPE, None))
    else:
        if verdict.point != finished.point:
            ranks = rekeyed(ranks, verdict.point)
        log.measured.append(Measured(verdict.point, finished.regime.value, tuple(ranks), samples))
    return stop


def _skip(context: RunContext, finished: Finished, verdict: Verdict, entry: Warmup | None) -> None:
    """Write a skip down. A replica's is only noted with its warm-up: it must not spoil a good run."""
    reason = verdict.skip or SkipReason.NO_FPM
    if entry is not None:
        judged = finished.skip is None
        found = WarmupValidation(ValidationStatus.NOT_PERFORMED, reason.value)
        if judged:
            found = WarmupValidation(ValidationStatus.FAILED, reason.value, _SCOPE, verdict.failed_dp_rank)
        _end_replica(context, entry, found, failed=True)
        return
    if context.settings.explicit:
        raise BenchError(
            f"point {finished.point.benchmark_id}, which the points file asks for, was not measured: "
            f"{reason.value}{f' ({finished.why})' if finished.why else ''}"
        )
    context.log.skipped.append(Skipped(verdict.point, finished.regime.value, reason))


def _begin_replica(context: RunContext, point: Point) -> Warmup:
    log = context.log
    return log.warmups.begin(
        WarmupKind.EAGER_SHAPE,
        record(point),
        next_forward=log.next_forward,
        completed_points=len(log.measured),
    )


def _end_replica(
    context: RunContext, entry: Warmup, validation: WarmupValidation, *, failed: bool = False
) -> None:
    log = context.log
    log.warmups.finish(entry, next_forward=log.next_forward, failed=failed, validation=validation)
