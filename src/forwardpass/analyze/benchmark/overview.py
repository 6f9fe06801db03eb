"""Knows what stands beside a run's numbers: how sure they are, what went before them, what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, Struct

from forwardpass.analyze.benchmark.run import BenchRun, Unread
from forwardpass.analyze.benchmark.spread import Spread, spread
from forwardpass.artifact.read import Kind
from forwardpass.bench.evidence import UnavailableWarmups, WarmupStatus

__all__ = ["Apart", "Counts", "Noise", "Overview", "PointNoise", "Warmups", "overview"]

MOST_LISTED = 10


class Counts(Struct, frozen=True):
    """Points of each rank."""

    expected: int | None
    """``None``: not said."""
    measured: int
    skipped: int
    skip_reasons: dict[str, int]
    """Reason -> points."""


class PointNoise(Struct, frozen=True):
    """How far the samples of one rank's point lie apart."""

    benchmark_id: int
    rank: int
    method: str
    spread: Spread


class Noise(Struct, frozen=True):
    """What the samples say, within one launch: adjacent steps are no repetitions of a run."""

    several_samples: int
    """Points of ranks that have a spread."""
    one_sample: int
    """Those that were measured once: nothing is known of their spread."""
    not_recorded: int
    """Those of which the file does not say how often they were measured."""
    median_cv: float | None
    """The upper median of the points with several samples."""
    widest: tuple[PointNoise, ...]
    """The ten with the largest cv, the largest first."""


class Apart(Struct, frozen=True):
    """How far ranks lie apart that ran the same points together: imbalance, not noise."""

    points: int
    median_ratio: float
    """Slowest by fastest rank, the upper median of all points."""
    most_ratio: float
    most_at: int
    """``benchmark_id`` of the point with the largest one."""


class Warmups(Struct, frozen=True):
    """What one rank ran before it measured."""

    rank: int
    recorded: bool
    """Whether it is known; that there were none is something else."""
    reason: str | None
    """Why it is not known, where the file says so."""
    attempts: int
    by_kind: dict[str, int]
    failed: tuple[str, ...]
    """Kind and reason of each that failed."""
    unfinished: int


class Overview(Struct, frozen=True, kw_only=True):
    """A run as one looks at it. Of strings and numbers of the head the file's own are shown, sound or not."""

    file: str
    kind: Kind
    status: Any
    valid: Any
    usable: Any
    stop_reason: Any
    error: Any
    timing_valid: Any
    missing_phases: Any
    run_id: Any
    grid_digest: Any
    ranks: tuple[int, ...]
    points: Counts
    noise: Noise
    ranks_apart: Apart | None
    """``None`` for one rank."""
    warmups: tuple[Warmups, ...]
    dispatch: dict[str, int]
    """Runtime mode -> samples of which the engine said so; a fact beside what was expected, not a check."""
    unread: tuple[Unread, ...]


def overview(run: BenchRun) -> Overview:
    """Return what stands beside the numbers of ``run``."""
    head = run.head
    names = (
        "valid",
        "usable",
        "stop_reason",
        "error",
        "timing_valid",
        "missing_phases",
        "run_id",
        "grid_digest",
    )
    return Overview(
        file=run.file,
        kind=run.kind,
        status=_status(head),
        **{name: head.get(name) for name in names},
        ranks=run.ranks,
        points=_counts(run),
        noise=_noise(run),
        ranks_apart=_apart(run),
        warmups=tuple(_warmups(run)),
        dispatch=_dispatch(run),
        unread=run.unread,
    )


def _status(head: dict[str, Any]) -> Any:
    """Return the status; files from before it existed are complete if they are valid."""
    if "status" in head:
        return head["status"]
    return "complete" if head.get("valid") is True else "failed"


def _counts(run: BenchRun) -> Counts:
    expected = run.block("coverage").get("expected_points")
    if run.kind is Kind.MERGED and type(expected) is int:  # it counts the points of all ranks
        size = run.size or 0
        expected = expected // size if size and expected % size == 0 else None
    return Counts(
        expected=expected if type(expected) is int and expected <= 1 << 53 else None,
        measured=len(run.points),
        skipped=len(run.skipped),
        skip_reasons=dict(Counter(skipped.reason for skipped in run.skipped).most_common()),
    )


def _noise(run: BenchRun) -> Noise:
    several: list[PointNoise] = []
    once = unknown = 0
    for point in run.points:
        for time in point.ranks:
            if time.method is None:
                unknown += 1
            elif len(time.samples) < 2:
                once += 1
            elif (found := spread(time.samples)) is not None:
                several.append(PointNoise(point.point.benchmark_id, time.rank, time.method, found))
    several.sort(key=lambda noise: -(noise.spread.cv or 0.0))
    known = sorted(noise.spread.cv for noise in several if noise.spread.cv is not None)
    median = known[len(known) // 2] if known else None
    return Noise(len(several), once, unknown, median, tuple(several[:MOST_LISTED]))


def _apart(run: BenchRun) -> Apart | None:
    ratios = []
    for point in run.points:
        walls = [time.wall_time for time in point.ranks]
        if len(walls) > 1 and min(walls) > 0:
            ratios.append((max(walls) / min(walls), point.point.benchmark_id))
    if not ratios:
        return None
    ratios.sort()
    most, at = ratios[-1]
    return Apart(len(ratios), ratios[len(ratios) // 2][0], most, at)


def _warmups(run: BenchRun) -> Iterator[Warmups]:
    for rank, ledger in sorted(run.ledgers.items()):
        if isinstance(ledger, UnavailableWarmups):
            reason = None if ledger.reason is UNSET else str(ledger.reason)
            yield Warmups(rank, False, reason, 0, {}, (), 0)
            continue
        records = ledger.records
        failed = [one for one in records if one.status is WarmupStatus.FAILED]
        yield Warmups(
            rank=rank,
            recorded=True,
            reason=None,
            attempts=len(records),
            by_kind=dict(Counter(one.kind.value for one in records)),
            failed=tuple(f"{one.kind.value}: {one.validation.reason or 'no reason'}" for one in failed),
            unfinished=sum(one.status is WarmupStatus.RUNNING for one in records),
        )


def _dispatch(run: BenchRun) -> dict[str, int]:
    words = (word for point in run.points for time in point.ranks for word in time.dispatch)
    return dict(Counter(word.split(" ")[0] for word in words).most_common())
