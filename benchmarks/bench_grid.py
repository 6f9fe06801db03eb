"""Knows what planning the grid of a self-benchmark takes, and that it grows with its points and no faster.

An engine with more captured sizes has more points. Each grid is whole: axes, what fits, expectations, ids,
replicas and the digest. The goals: 100,000 points in at most 2 s, and a point of the largest grid takes at
most 1.5 times what one of the smallest does.
"""

from __future__ import annotations

import time

from forwardpass.bench.grid import SampleLimits, build_grid
from forwardpass.bench.limits import CapacityEnvelope, EngineLayout, GraphMode, GraphSettings, KvGroup
from forwardpass.bench.points import Phase
from harness import Result, compare, run_script

__all__ = ["main"]

GOAL_SECONDS = 2.0
GOAL_RATIO = 1.5
CAPTURES = (66, 270, 1020)
"""How many sizes are captured, eight apart: about 22,000, 100,000 and 400,000 points."""
NO_LIMIT = 1_000_000
SAMPLES = SampleLimits(NO_LIMIT, NO_LIMIT, NO_LIMIT, NO_LIMIT, NO_LIMIT)
CAPACITY = CapacityEnvelope(131_072, 65_536, 4096, 10_000_000, 10_000_000)


def layout(captures: int) -> EngineLayout:
    """Return an engine with so many captured sizes."""
    sizes = (1, 2, 4, *range(8, captures * 8 + 1, 8))
    graph = GraphSettings("FULL_AND_PIECEWISE", GraphMode.PIECEWISE, GraphMode.FULL, sizes)
    return EngineLayout((KvGroup(16),), 16, 16, graph=graph)


def planned(captures: int) -> tuple[int, float]:
    """Return how many points the engine's grid has, and the seconds that planning it took."""
    engine = layout(captures)
    begin = time.perf_counter()
    grid = build_grid((Phase.PREFILL, Phase.DECODE), engine, CAPACITY, samples=SAMPLES)
    return len(grid.points), time.perf_counter() - begin


def seconds_per_point(captures: int) -> float:
    """Return the seconds of one point."""
    points, seconds = planned(captures)
    return seconds / points


def main() -> list[Result]:
    """Compare what a point takes in grids of three sizes."""
    sizes = {captures: planned(captures)[0] for captures in CAPTURES}
    ways = {
        f"{points:,} points": lambda captures=captures: seconds_per_point(captures)
        for captures, points in sizes.items()
    }
    result = compare("grid, a point", ways, unit="us", rounds=5, warmup=0, goal=GOAL_RATIO)
    middle = result.sides[1].median * 100_000 / 1e6
    verdict = "met" if middle <= GOAL_SECONDS else "MISSED"
    note = f"goal: 100,000 points in {GOAL_SECONDS:g} s; {middle:.2f} s, {verdict}"
    return [Result(result.name, result.unit, result.rounds, result.sides, result.goal, note)]


if __name__ == "__main__":
    run_script(main)
