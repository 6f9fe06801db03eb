"""Knows how the times of one point in two runs are held against each other, and what may be concluded.

A launch measures a point once on each rank. Only launches are independent; several samples within one are
adjacent steps, and an interval of them speaks of these two launches alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from forwardpass.analyze.benchmark.intervals import LEVEL, Interval, ratio_interval
from forwardpass.analyze.benchmark.run import RankTime
from forwardpass.analyze.benchmark.spread import Spread, spread
from forwardpass.bench.outcome import KvRegime

__all__ = ["Basis", "RankComparison", "Verdict", "Why", "compare_rank"]


_AS_ONE = {KvRegime.LEGACY.value: KvRegime.FAKE_FALLBACK.value}
"""Both are made-up KV; they say only whether the warm-up with real KV was switched on."""


class Basis(StrEnum):
    """What the samples of an interval are."""

    LAUNCHES = "launches"
    """One for each launch: independent of each other."""
    ADJACENT_STEPS = "adjacent_steps"
    """Steps of one launch each: what another launch would measure is not in them."""


class Verdict(StrEnum):
    """What is concluded of B beside A."""

    SLOWER = "slower"
    FASTER = "faster"
    UNDECIDED = "undecided"
    """There are samples, and they do not tell the two apart at this level."""
    NOT_COMPARABLE = "not_comparable"
    """Nothing can be concluded, whatever the numbers are."""


class Why(StrEnum):
    """Why nothing is concluded."""

    ONE_SAMPLE = "one_sample"
    """One on each side: a ratio and no idea of its spread."""
    FEW_SAMPLES = "few_samples"
    """So few that no interval is as sure as asked for."""
    HOLDS_ONE = "interval_holds_one"
    PROMPTS_DIFFER = "prompts_differ"
    PREPARED_DIFFERENTLY = "prepared_differently"
    """Another KV regime: real and made-up prefixes are not the same work."""
    NO_TIME = "no_time"
    """A time of 0: there is no ratio."""


class RankComparison(Struct, frozen=True, kw_only=True):
    """One point on one rank, in both runs."""

    rank: int
    a: Spread
    """Of what was compared: launches, or the samples of one."""
    b: Spread
    ratio: float | None
    """B by A, of what was retained; of several launches that of the medians."""
    basis: Basis | None
    """``None``: there is one sample on each side."""
    interval: Interval | None
    verdict: Verdict
    why: Why | None
    prompts: bool | None
    """Whether the prompts were the same; ``None``: not known on one side at least, which is no match."""
    dispatch_differs: bool | None
    """Whether the engine reported other graph modes or sizes; ``None``: one side reported nothing. That they
    are the same does not make the executions equal."""


def compare_rank(a: Sequence[RankTime], b: Sequence[RankTime], level: float = LEVEL) -> RankComparison:
    """Return what the times of one point on one rank say; each side has one entry for each launch."""
    several = len(a) > 1 or len(b) > 1
    before, after = ([time.wall_time for time in side] for side in (a, b))
    basis: Basis | None = Basis.LAUNCHES if several else None
    retained = _median(before), _median(after)
    if not several and min(len(a[0].samples), len(b[0].samples)) and len(a[0].samples + b[0].samples) > 2:
        before, after, basis = list(a[0].samples), list(b[0].samples), Basis.ADJACENT_STEPS
    ratio = retained[1] / retained[0] if min(retained) > 0 else None
    interval = ratio_interval(before, after, level) if basis is not None else None
    prompts = _same_prompts(a, b)
    why = _obstacle(a, b, prompts, ratio)
    verdict = Verdict.NOT_COMPARABLE
    if why is None:
        verdict, why = _verdict(interval, level)
    first, second = spread(before), spread(after)
    assert first is not None  # each side has a launch, and each launch a time
    assert second is not None
    return RankComparison(
        rank=a[0].rank, a=first, b=second, ratio=ratio, basis=basis, interval=interval, verdict=verdict,
        why=why, prompts=prompts, dispatch_differs=_dispatch_differs(a, b),
    )  # fmt: skip


def _verdict(interval: Interval | None, level: float) -> tuple[Verdict, Why | None]:
    if interval is None:
        return Verdict.NOT_COMPARABLE, Why.ONE_SAMPLE
    if not interval.reaches(level):
        return Verdict.UNDECIDED, Why.FEW_SAMPLES
    if interval.low > 1:
        return Verdict.SLOWER, None
    if interval.high < 1:
        return Verdict.FASTER, None
    return Verdict.UNDECIDED, Why.HOLDS_ONE


def _obstacle(
    a: Sequence[RankTime], b: Sequence[RankTime], prompts: bool | None, ratio: float | None
) -> Why | None:
    """Return what forbids a conclusion whatever the interval says."""
    if ratio is None or any(time.wall_time <= 0 or min(time.samples, default=1) <= 0 for time in (*a, *b)):
        return Why.NO_TIME
    if prompts is False:
        return Why.PROMPTS_DIFFER
    regimes = {_AS_ONE.get(time.kv_seed_regime or "", time.kv_seed_regime) for time in (*a, *b)} - {None}
    return Why.PREPARED_DIFFERENTLY if len(regimes) > 1 else None


def _same_prompts(a: Sequence[RankTime], b: Sequence[RankTime]) -> bool | None:
    hashes = {time.prompts_sha256 for time in (*a, *b)}
    if len(hashes - {None}) > 1:
        return False
    return None if None in hashes else True


def _dispatch_differs(a: Sequence[RankTime], b: Sequence[RankTime]) -> bool | None:
    sides = [{word for time in side for word in time.dispatch} for side in (a, b)]
    if any(not side or "unavailable" in side for side in sides):
        return None
    return sides[0] != sides[1]


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
