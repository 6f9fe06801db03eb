"""Knows how to compare ways of doing one thing fairly on a noisy machine, and how to print the outcome.

Every number here is a *ratio of two ways run in turn in one process*. Each round runs every way once, in
an order that alternates (A B, B A, …), so that a slow second of the machine hits both. The ratio is the
median of the rounds' own ratios; its spread is from the 10th to the 90th percentile of the rounds.

A benchmark file is ``benchmarks/bench_<what>.py`` with ``def main() -> list[Result]`` and ends with::

    if __name__ == "__main__":
        run_script(main)

``compare`` times callables; ``from_rounds`` takes figures that were measured otherwise (percentiles,
bytes, losses), one per round and way.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

__all__ = [
    "Result",
    "Side",
    "compare",
    "from_rounds",
    "is_large",
    "is_quick",
    "percentile",
    "print_table",
    "rounds_for",
    "run_script",
    "set_large",
    "set_quick",
    "write_json",
]

Way = Callable[[], float | None]
"""One way of doing it. Returns ``None``: the harness times the call. Returns a float: seconds that it
timed itself (for work with a set-up that must not count)."""

_SCALE = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_QUICK_ROUNDS = 3
_state = {"quick": False, "large": False}


class Side(Struct, frozen=True):
    """One way's figures over all rounds, per item and in the result's unit."""

    label: str
    median: float
    low: float
    high: float
    ratio: float
    """To the first way: below 1 is less of whatever is measured. 1.0 for the first way itself."""
    ratio_low: float
    ratio_high: float


class Result(Struct, frozen=True):
    """One comparison. The first side is the baseline, the last one is ours."""

    name: str
    unit: str
    rounds: int
    sides: tuple[Side, ...]
    goal: float | None = None
    """Largest acceptable ratio of the last side to the first, where there is a goal."""
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; ``None`` without one."""
        return None if self.goal is None else self.sides[-1].ratio <= self.goal


def set_quick(quick: bool = True) -> None:
    """Run only a few rounds: to see that a benchmark works, not what it says."""
    _state["quick"] = quick


def is_quick() -> bool:
    """Say whether only a few rounds were asked for."""
    return _state["quick"]


def set_large(large: bool = True) -> None:
    """Also measure sizes that take minutes each."""
    _state["large"] = large


def is_large() -> bool:
    """Say whether sizes that take minutes were asked for."""
    return _state["large"]


def rounds_for(wanted: int) -> int:
    """Return how many rounds to run: ``wanted``, or a few in quick mode."""
    return min(wanted, _QUICK_ROUNDS) if _state["quick"] else wanted


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value at ``share`` (0 … 1) of the sorted ``values``, by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def compare(
    name: str,
    ways: Mapping[str, Way],
    *,
    items: int = 1,
    unit: str = "us",
    rounds: int = 21,
    warmup: int = 1,
    cpu: bool = False,
    goal: float | None = None,
    note: str = "",
) -> Result:
    """Time ``ways`` (label -> callable; the first is the baseline, the last is ours) in turn.

    ``items`` is how many items one call handles: figures are per item. ``unit`` is one of s, ms, us, ns.
    With ``cpu`` the process's CPU time is measured (all threads) instead of wall time. The garbage
    collector runs between calls, not during them.
    """
    clock = time.process_time if cpu else time.perf_counter
    scale = _SCALE[unit] / items
    figures: dict[str, list[float]] = {label: [] for label in ways}
    for number in range(warmup + rounds_for(rounds)):
        order = list(ways.items())
        for label, way in order if number % 2 == 0 else reversed(order):
            seconds = _time(way, clock)
            if number >= warmup:
                figures[label].append(seconds * scale)
    return from_rounds(name, figures, unit=unit, goal=goal, note=note)


def _time(way: Way, clock: Callable[[], float]) -> float:
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        begin = clock()
        own = way()
        end = clock()
    finally:
        if was_enabled:
            gc.enable()
    if own is None:
        return end - begin
    if isinstance(own, float):
        return own
    raise TypeError(f"a way returns None or its own seconds, not {type(own).__name__}")


def from_rounds(
    name: str,
    figures: Mapping[str, Sequence[float]],
    *,
    unit: str = "us",
    goal: float | None = None,
    note: str = "",
) -> Result:
    """Return the comparison of figures (label -> one per round, in the same order of rounds)."""
    base = next(iter(figures.values()))
    sides = tuple(_side(label, values, base) for label, values in figures.items())
    return Result(name, unit, len(base), sides, goal, note)


def _side(label: str, values: Sequence[float], base: Sequence[float]) -> Side:
    ratios = [
        mine / theirs if theirs else (1.0 if not mine else float("inf"))
        for mine, theirs in zip(values, base, strict=True)
    ]
    return Side(
        label,
        statistics.median(values),
        percentile(values, 0.1),
        percentile(values, 0.9),
        statistics.median(ratios),
        percentile(ratios, 0.1),
        percentile(ratios, 0.9),
    )


def print_table(results: Sequence[Result]) -> None:
    """Print every comparison, one line per way."""
    rows: list[tuple[str, ...]] = [("benchmark", "way", "median", "unit", "ratio", "10-90 %", "goal")]
    for result in results:
        for position, side in enumerate(result.sides):
            last = position == len(result.sides) - 1
            rows.append(_row(result, side, first=position == 0, last=last))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for result in results:
        if result.note:
            print(f"{result.name}: {result.note}")


def _row(result: Result, side: Side, *, first: bool, last: bool) -> tuple[str, ...]:
    goal = ""
    if last and result.goal is not None:
        goal = f"<= {result.goal:g} {'met' if result.met else 'MISSED'}"
    return (
        result.name if first else "",
        side.label,
        f"{side.median:.4g}",
        result.unit,
        "1 (base)" if first else f"{side.ratio:.3g}",
        "" if first else f"{side.ratio_low:.3g}-{side.ratio_high:.3g}",
        goal,
    )


def write_json(results: Sequence[Result], path: str) -> None:
    """Write the comparisons as a JSON array to ``path`` (``-`` is stdout)."""
    data = msgspec.json.format(msgspec.json.encode(results), indent=2)
    if path == "-":
        sys.stdout.write(data.decode() + "\n")
    else:
        Path(path).write_bytes(data + b"\n")


def run_script(main: Callable[[], list[Result]], description: str | None = None) -> None:
    """Run one benchmark file's ``main`` from the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="few rounds: does it work at all?")
    parser.add_argument("--large", action="store_true", help="also sizes that take minutes each")
    parser.add_argument("--json", metavar="PATH", help="also write JSON to PATH (- for stdout)")
    arguments = parser.parse_args()
    set_quick(arguments.quick)
    set_large(arguments.large)
    results = main()
    if arguments.json != "-":
        print_table(results)
    if arguments.json:
        write_json(results, arguments.json)
