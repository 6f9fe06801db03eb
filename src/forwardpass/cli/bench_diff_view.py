"""Knows how a comparison of two runs reads in a terminal: what differs, what may be said, maps of ratios."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from math import log

from forwardpass.analyze.benchmark.comparison import Comparison, PointTiming, Timing
from forwardpass.analyze.benchmark.fields import Effect, FieldDifference
from forwardpass.analyze.benchmark.intervals import Interval
from forwardpass.analyze.benchmark.pairs import GridDifference, Lone
from forwardpass.analyze.benchmark.run import BenchRun
from forwardpass.analyze.benchmark.surface import Surface, surfaces
from forwardpass.analyze.benchmark.timing import Basis, RankComparison, Verdict, Why
from forwardpass.cli.bench_facts import point_words
from forwardpass.cli.bench_show_view import digits, fact_lines, has_shared_places, table_lines
from forwardpass.cli.heat_map import RATIO_COLOURS, Scale, axes_words, heat_lines
from forwardpass.cli.summary_view import counted
from forwardpass.cli.terminal import printable

__all__ = ["diff_lines"]

MOST_SHOWN = 10
_LINE = 1000
_EFFECTS = {Effect.REFUSED: "!", Effect.CAVEAT: "", Effect.NOTE: "note"}
_BASES = {
    Basis.LAUNCHES: "launches",
    Basis.ADJACENT_STEPS: "steps of one launch",
    None: "-",
}
_REASONS = {
    Why.ONE_SAMPLE.value: "one sample on each side: a ratio, and no idea of its spread",
    Why.FEW_SAMPLES.value: "too few samples to be so sure",
    Why.HOLDS_ONE.value: "the interval holds 1",
    Why.PROMPTS_DIFFER.value: "their prompts differ",
    Why.PREPARED_DIFFERENTLY.value: "their KV was prepared differently",
    Why.NO_TIME.value: "a time of 0",
}


def diff_lines(
    found: Comparison,
    runs: tuple[BenchRun, BenchRun],
    width: int,
    colours: bool,
    *,
    every_point: bool = False,
) -> Iterator[str]:
    """Yield the lines of a comparison, of at most ``width`` columns where the tables allow."""
    for label, run in zip("AB", runs, strict=True):
        yield printable(f"{label}  {run.file}: {counted(len(run.points), 'point')}", _LINE)
    yield ""
    yield from fact_lines([*_refusals(found), *_grid(found.grid), *_caveats(found)], width)
    yield from _lone(found.grid, every_point)
    yield from _fields(found.fields, width)
    if found.timing is not None:
        yield from _timing(found.timing, runs, width, colours, every_point)


def _refusals(found: Comparison) -> Iterator[tuple[str, str]]:
    label = "forced" if found.forced else "not compared"
    for reason in found.refused:
        yield label, reason


def _grid(grid: GridDifference) -> Iterator[tuple[str, str]]:
    same = {
        True: "planned alike",
        False: "planned differently",
        None: "whether they were planned alike is not known",
    }
    words = [f"{counted(grid.common, 'point')} in both, {same[grid.same_digest]}"]
    words += [f"{len(grid.only_a):,} in A alone"] if grid.only_a else []
    words += [f"{len(grid.only_b):,} in B alone"] if grid.only_b else []
    words += [f"{len(grid.moved):,} with another id"] if grid.moved else []
    words += (
        [f"{len(grid.retold):,} expected to run in another graph or measured for another reason"]
        if grid.retold
        else []
    )
    yield "grid", ", ".join(words)


def _caveats(found: Comparison) -> Iterator[tuple[str, str]]:
    for words in found.caveats:
        yield "caveat", words


def _lone(grid: GridDifference, every_point: bool) -> Iterator[str]:
    for label, other, points in (("A", "B", grid.only_a), ("B", "A", grid.only_b)):
        if points:
            yield ""
            yield f"in {label} alone"
            shown = points if every_point else points[:MOST_SHOWN]
            yield from table_lines([_lone_row(one, other) for one in shown], left=3)
            if len(shown) < len(points):
                yield f"  and {len(points) - len(shown):,} more; --points lists all"
    if every_point and grid.moved:
        yield ""
        yield "with another id"
        rows = [("A", "B", "point")]
        rows += [(str(one.a), str(one.b), point_words(one.point)) for one in grid.moved]
        yield from table_lines(rows, left=3)


def _lone_row(one: Lone, other: str) -> tuple[str, str, str]:
    why = f"{other} skipped it: {one.why}" if one.why else f"{other} does not have it"
    return str(one.point.benchmark_id), point_words(one.point), why


def _fields(fields: Sequence[FieldDifference], width: int) -> Iterator[str]:
    if not fields:
        return
    yield ""
    yield "fields that differ"
    rows = [("", "field", "A", "B")]
    most = max(12, (width - max(len(f"{one.area}: {one.path}") for one in fields) - 9) // 2)
    for one in fields:
        sign = _EFFECTS[one.effect]
        rows.append((sign, f"{one.area}: {one.path}", _cut(one.a, most), _cut(one.b, most)))
    yield from table_lines(rows, left=4)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


# --- times ------------------------------------------------------------------------------------------


def _timing(
    timing: Timing, runs: tuple[BenchRun, BenchRun], width: int, colours: bool, every_point: bool
) -> Iterator[str]:
    yield ""
    launches = " and ".join(map(str, timing.launches))
    yield f"times, B by A ({launches} launches)"
    yield from (f"  {line}" for line in fact_lines([*_phases(timing), *_verdicts(timing)], width - 2))
    for surface in _ratio_maps(timing, runs):
        yield ""
        words = f"{surface.phase}, B by A of the slowest rank: {axes_words(surface)}"
        shared = "; +: several points, the one that differs most is shown"
        words += shared if has_shared_places(surface) else ""
        words += "" if colours else "; <: faster, >: slower by 5 % or more, twice by 20 % or more"
        yield from textwrap.wrap(words, width)
        yield from (f"  {line}".rstrip() for line in heat_lines(surface, _scale(surface, colours), width - 2))
    yield from _largest(timing, every_point)


def _phases(timing: Timing) -> Iterator[tuple[str, str]]:
    for one in timing.phases:
        words = (
            f"median ratio {one.median_ratio:.3f} of {counted(one.points, 'point')}, "
            f"from {one.least:.3f} to {one.most:.3f}"
        )
        if one.interval is not None:
            words += f"; median of such points of these launches {_interval(one.interval)}"
        yield one.phase.value, words


def _verdicts(timing: Timing) -> Iterator[tuple[str, str]]:
    counts = timing.verdicts
    sure = f"{100 * timing.level:g} %"
    parts = [
        f"{counts[Verdict.SLOWER.value]:,} slower",
        f"{counts[Verdict.FASTER.value]:,} faster",
        f"{counts[Verdict.UNDECIDED.value]:,} not told apart",
        f"{counts[Verdict.NOT_COMPARABLE.value]:,} not comparable",
    ]
    yield "points", f"{', '.join(parts)} (of each rank, at {sure})"
    for why, count in timing.reasons.items():
        yield "because", f"{counted(count, 'point')}: {_REASONS[why]}"
    chance = timing.chance
    if chance.tests:
        found = (
            "is more than chance explains" if chance.probability <= 1 - timing.level else "chance explains it"
        )
        yield (
            "chance",
            (
                f"of {chance.tests:,} intervals {chance.expected:.1f} would exclude 1 if nothing differed; "
                f"{chance.decided:,} {'do' if chance.decided != 1 else 'does'}: {found}"
            ),
        )
    prompts = timing.prompts
    yield (
        "prompts",
        f"{prompts.same:,} the same, {prompts.different:,} different, {prompts.unknown:,} not known",
    )
    if timing.dispatch_differs:
        yield (
            "dispatch",
            f"{counted(timing.dispatch_differs, 'point')} for which the engines reported other graphs",
        )


def _ratio_maps(timing: Timing, runs: tuple[BenchRun, BenchRun]) -> list[Surface]:
    ratios = {point.point.benchmark_id: point.ratio for point in timing.points}
    return surfaces(
        runs[0].points,
        runs[0].graphs,
        lambda point: ratios.get(point.point.benchmark_id),
        lambda values: max(values, key=lambda value: abs(log(value))),
    )


def _scale(surface: Surface, colours: bool) -> Scale:
    """Return a scale with 1 in the middle; without colours signs say which way."""
    widest = max(abs(log(surface.least)), abs(log(surface.most)), log(1.1))
    return Scale(
        text=lambda value: f"{value:.2f}",
        level=lambda value: 0.5 + log(value) / (2 * widest),
        colours=RATIO_COLOURS if colours else None,
        sign=_sign,
    )


def _sign(ratio: float) -> str:
    sign = ">" if ratio > 1 else "<"
    strength = abs(log(ratio))
    return (sign * (2 if strength >= log(1.2) else 1 if strength >= log(1.05) else 0)).ljust(2)


def _largest(timing: Timing, every_point: bool) -> Iterator[str]:
    known = [(point, rank) for point in timing.points for rank in point.ranks]
    if not known:
        return
    if not every_point:
        known.sort(key=lambda one: -abs(log(one[1].ratio)) if one[1].ratio else 0.0)
        known = known[:MOST_SHOWN]
    yield ""
    yield "points" if every_point else "points that differ most"
    head = ("id", "point", "rank", "A ms", "B ms", "ratio", "samples", "interval", "of", "verdict")
    yield from table_lines([head, *(_row(point, rank) for point, rank in known)], left=2)


def _row(point: PointTiming, rank: RankComparison) -> tuple[str, ...]:
    verdict = rank.verdict.value.replace("_", " ")
    why = f" ({rank.why.value.replace('_', ' ')})" if rank.why is not None else ""
    return (
        str(point.point.benchmark_id),
        point_words(point.point),
        str(rank.rank),
        digits(rank.a.median * 1e3),
        digits(rank.b.median * 1e3),
        "-" if rank.ratio is None else f"{rank.ratio:.3f}",
        f"{rank.a.count}, {rank.b.count}",
        "-" if rank.interval is None else _interval(rank.interval),
        _BASES[rank.basis],
        f"{verdict}{why}",
    )


def _interval(interval: Interval) -> str:
    return f"{interval.low:.3f} to {interval.high:.3f} ({100 * interval.level:.1f} %)"
