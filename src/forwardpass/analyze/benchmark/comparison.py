"""Knows how two runs are compared: whether they may be, their grids, their fields, and their times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from forwardpass.analyze.benchmark.fields import (
    Effect,
    FieldDifference,
    field_differences,
    unrecorded,
)
from forwardpass.analyze.benchmark.intervals import LEVEL, Interval, by_chance, median_interval
from forwardpass.analyze.benchmark.pairs import GridDifference, Pair, grid_difference, paired
from forwardpass.analyze.benchmark.run import BenchRun
from forwardpass.analyze.benchmark.timing import RankComparison, Verdict, Why, compare_rank
from forwardpass.artifact.blocks import PointRecord
from forwardpass.artifact.shape import found
from forwardpass.bench.points import Phase

__all__ = ["Chance", "Comparison", "PhaseTiming", "PointTiming", "Prompts", "Timing", "compare", "unlike"]


class PointTiming(Struct, frozen=True):
    """One coordinate in both runs."""

    point: PointRecord
    """As A has it."""
    b_id: int
    a_seconds: float
    """Of the slowest rank, in the first launch of A."""
    b_seconds: float
    ratio: float | None
    """B by A, of these; ``None`` for a time of 0."""
    ranks: tuple[RankComparison, ...]


class PhaseTiming(Struct, frozen=True):
    """How the ratios of one phase lie."""

    phase: Phase
    points: int
    median_ratio: float
    least: float
    most: float
    interval: Interval | None
    """Where the median of such points lies, were they drawn at random from a grid of these two launches. It
    holds nothing of what other launches would measure."""


class Chance(Struct, frozen=True):
    """How many points would seem to differ if none did."""

    tests: int
    """Points of ranks whose interval is as sure as asked for."""
    decided: int
    """Those that are slower or faster."""
    expected: float
    """How many of them chance makes, if the samples are independent and nothing differs."""
    probability: float
    """Of so many, or more, by chance."""


class Prompts(Struct, frozen=True):
    """Points of ranks by what is known of their prompts."""

    same: int
    different: int
    unknown: int


class Timing(Struct, frozen=True, kw_only=True):
    """What was found of the times."""

    level: float
    launches: tuple[int, int]
    """How many of each side."""
    phases: tuple[PhaseTiming, ...]
    points: tuple[PointTiming, ...]
    verdicts: dict[str, int]
    """Verdict -> points of ranks."""
    chance: Chance
    reasons: dict[str, int]
    """Why nothing was concluded -> points of ranks."""
    prompts: Prompts
    dispatch_differs: int
    """Points of ranks for which the engines reported something else."""

    @property
    def has_findings(self) -> bool:
        """Whether more points are slower or faster than chance explains, or one had other prompts."""
        return self.chance.probability <= 1 - self.level or bool(self.prompts.different)


class Comparison(Struct, frozen=True, kw_only=True):
    """Two runs, A and B, side by side."""

    refused: tuple[str, ...]
    """Why their times are not the same quantity; empty if they are, as far as the files tell."""
    forced: bool
    """Whether they were compared all the same."""
    grid: GridDifference
    fields: tuple[FieldDifference, ...]
    caveats: tuple[str, ...]
    timing: Timing | None
    """``None`` if it was refused."""

    @property
    def has_findings(self) -> bool:
        """Whether anything differs: grid, protocol, provenance, or the times of a point."""
        return (
            not self.grid.is_empty
            or any(one.is_finding for one in self.fields)
            or (self.timing is not None and self.timing.has_findings)
        )


def compare(
    a: Sequence[BenchRun], b: Sequence[BenchRun], *, force: bool = False, level: float = LEVEL
) -> Comparison:
    """Return how the launches of ``a`` and of ``b`` differ; each needs one at least.

    Grid and fields are those of the first launch of each side; see :func:`unlike` for the others. ``force``
    compares times that are not the same quantity.
    """
    one, other = a[0], b[0]
    fields = tuple(field_differences(one, other))
    refused = tuple(
        f"{field.path}: A has {field.a}, B has {field.b}"
        for field in fields
        if field.effect is Effect.REFUSED
    )
    grid = grid_difference(one, other)
    return Comparison(
        refused=refused,
        forced=bool(refused) and force,
        grid=grid,
        fields=fields,
        caveats=tuple(_caveats(a, b, grid)),
        timing=None if refused and not force else _timing(a, b, level),
    )


def unlike(first: BenchRun, again: BenchRun) -> str | None:
    """Return why ``again`` is no other launch of what ``first`` is one of, ``None`` if it is one."""
    if first.head.get("run_id") == again.head.get("run_id"):
        return "it is the same launch"
    if not grid_difference(first, again).is_empty:
        return "its grid is another one"
    known = [field for field in field_differences(first, again) if field.is_finding]
    if known:
        return f"{known[0].path} is {known[0].b} and not {known[0].a}"
    return None


def _caveats(a: Sequence[BenchRun], b: Sequence[BenchRun], grid: GridDifference) -> list[str]:
    words = [
        f"{label} is {_state(run)}"
        for label, side in (("A", a), ("B", b))
        for run in side
        if not run.is_whole
    ]
    launches = [{found(run.head.get("run_id")) for run in side} for side in (a, b)]
    if launches[0] & launches[1] - {"null"}:  # a run without an id is not known to be another
        words.append("a file of A and one of B are of one launch: they hold the same passes")
    if grid.same_digest is False:
        words.append("the grids were planned differently: a point has other points before it")
    if len(a) == len(b) == 1:
        words.append("one launch each: how far launches of the same engine lie apart is not known")
    return words + [f"not known: {one}" for one in unrecorded(a[0], b[0])]


def _state(run: BenchRun) -> str:
    status = run.head.get("status", "complete" if run.head.get("valid") is True else "failed")
    parts = [found(status, 40).strip('"')]
    if run.head.get("valid") is not True:
        parts.append("not valid")
    if run.head.get("stop_reason") is not None:
        parts.append(f"stopped by {found(run.head['stop_reason'], 40)}")
    if run.skipped:
        parts.append(f"{len(run.skipped)} points skipped")
    if run.unread:
        parts.append(f"{len(run.unread)} parts of its file could not be read")
    return ", ".join(parts)


# --- times ------------------------------------------------------------------------------------------


def _timing(a: Sequence[BenchRun], b: Sequence[BenchRun], level: float) -> Timing:
    sides = [[{point.place: point for point in run.points} for run in side] for side in (a, b)]
    points = []
    for pair in paired(a[0], b[0]):
        places = [[launch[pair.a.place] for launch in side if pair.a.place in launch] for side in sides]
        times = [
            {
                rank: [time for point in side for time in point.ranks if time.rank == rank]
                for rank in run.ranks
            }
            for side, run in zip(places, (a[0], b[0]), strict=True)
        ]
        ranks = [
            compare_rank(times[0][rank], times[1][rank], level)
            for rank in sorted(times[0].keys() & times[1].keys())
            if times[0][rank] and times[1][rank]
        ]
        points.append(_point(pair, ranks))
    all_ranks = [rank for point in points for rank in point.ranks]
    known = Counter(rank.prompts for rank in all_ranks)
    return Timing(
        level=level,
        launches=(len(a), len(b)),
        phases=tuple(_phases(points, level)),
        points=tuple(points),
        verdicts={one.value: sum(rank.verdict is one for rank in all_ranks) for one in Verdict},
        chance=_chance(all_ranks, level),
        reasons={one.value: count for one in Why if (count := sum(rank.why is one for rank in all_ranks))},
        prompts=Prompts(known[True], known[False], known[None]),
        dispatch_differs=sum(rank.dispatch_differs is True for rank in all_ranks),
    )


def _chance(ranks: Sequence[RankComparison], level: float) -> Chance:
    sure = [
        rank
        for rank in ranks
        if rank.interval is not None
        and rank.interval.reaches(level)
        and rank.verdict is not Verdict.NOT_COMPARABLE
    ]
    decided = sum(rank.verdict is not Verdict.UNDECIDED for rank in sure)
    share = 1 - level
    return Chance(len(sure), decided, share * len(sure), by_chance(decided, len(sure), share))


def _point(pair: Pair, ranks: Sequence[RankComparison]) -> PointTiming:
    before, after = pair.a.wall_time, pair.b.wall_time
    return PointTiming(
        point=pair.a.point,
        b_id=pair.b.point.benchmark_id,
        a_seconds=before,
        b_seconds=after,
        ratio=after / before if before > 0 and after > 0 else None,
        ranks=tuple(ranks),
    )


def _phases(points: Sequence[PointTiming], level: float) -> list[PhaseTiming]:
    found_ones = []
    for phase in Phase:
        ratios = sorted(
            point.ratio for point in points if point.point.point_type is phase and point.ratio is not None
        )
        if ratios:
            median = ratios[len(ratios) // 2]
            interval = median_interval(ratios, level)
            found_ones.append(PhaseTiming(phase, len(ratios), median, ratios[0], ratios[-1], interval))
    return found_ones
