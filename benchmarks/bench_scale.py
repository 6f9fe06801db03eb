"""Knows whether reading commands take time in proportion to a trace's size, and how much memory they take.

Each command runs in a process of its own over pairs of made-up traces that differ in one respect: the number
of rows, of gzip members in one file, of segments, of producers, of streams that miss every second counter.
The CPU is that of the command once it is loaded (``measured_child.py``), divided by the rows. ``--large``
adds ten million rows (ten minutes, 1 GB of disk).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from harness import Result, from_rounds, is_large, is_quick, rounds_for, run_script
from made_traces import Shape, make_trace

FOLDER = Path(__file__).resolve().parent
COMMANDS = {
    "read": ("read",),
    "trace stats": ("trace", "stats"),
    "trace verify": ("trace", "verify"),
    "trace gaps": ("trace", "gaps"),
    "trace merge": ("trace", "merge"),
    "trace ls": ("trace", "ls"),
}
READERS = tuple(COMMANDS)[:-1]
"""Commands that read every row."""
LINEAR_GOAL = 1.25
"""Most that a row may cost in the larger trace, to the smaller one."""
MEMORY_MIB = 256.0
LS_SECONDS = 1.0
FOUND_SOMETHING = 1
"""Exit code of ``trace gaps`` where counters are missing."""


class Run(NamedTuple):
    """What a command took."""

    cpu: float
    wall: float
    peak_mib: float


class Pair(NamedTuple):
    """A small and a large trace that differ in one respect."""

    what: str
    small: Shape
    large: Shape
    words: tuple[str, str]
    commands: Sequence[str] = READERS
    rounds: int = 3


def pairs() -> list[Pair]:
    """Return what is compared: a little, the usual, or also what takes minutes."""
    if is_quick():
        some = Shape(400, producers=40), Shape(4000, producers=400)
        return [
            Pair("rows", Shape(1000), Shape(20_000), ("1,000", "20,000"), rounds=1),
            Pair("producers", *some, ("40", "400"), tuple(COMMANDS), rounds=1),
        ]
    found = [
        Pair("rows, few", Shape(1000), Shape(100_000), ("1,000", "100,000"), rounds=9),
        Pair("rows", Shape(100_000), Shape(1_000_000), ("100,000", "1,000,000")),
        Pair("gzip members in one file", Shape(10_000, member_rows=10), Shape(100_000, member_rows=10),
             ("1,000", "10,000"), rounds=5),
        Pair("segments", Shape(10_000, segments=100), Shape(100_000, segments=1000),
             ("100", "1,000"), tuple(COMMANDS), rounds=5),
        Pair("producers", Shape(10_000, producers=100), Shape(100_000, producers=1000),
             ("100", "1,000"), tuple(COMMANDS), rounds=5),
        Pair("producers of full members", Shape(44_800, producers=4), Shape(358_400, producers=32),
             ("4", "32"), ("trace merge",)),
        Pair("streams with every second counter missing", Shape(50_000, producers=100, step=2),
             Shape(500_000, producers=1000, step=2), ("100", "1,000"), ("trace gaps",)),
    ]  # fmt: skip
    if is_large():
        huge = Pair("rows, many", Shape(100_000), Shape(10_000_000), ("100,000", "10,000,000"), rounds=1)
        found.append(huge)
    return found


def run(command: str, warm: Path, trace: Path) -> Run:
    """Run a command over a trace, after it ran over another one."""
    words = [sys.executable, str(FOLDER / "measured_child.py"), str(warm), str(trace), *COMMANDS[command]]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=3600)
    last = done.stderr.rstrip().rpartition("\n")[2]
    if not last.startswith("{"):
        raise RuntimeError(f"{command} failed: {done.stderr[-2000:]}")
    said = json.loads(last)
    if said["code"] not in (0, FOUND_SOMETHING):
        raise RuntimeError(f"{command} ended with {said['code']}: {done.stderr[-2000:]}")
    return Run(said["cpu"], said["wall"], said["peak"] / (1 << 20))


class Measurement:
    """All runs, and the most memory of each command."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._one_row = make_trace(folder / "one", Shape(1))
        self.peaks: dict[str, dict[str, float]] = {command: {} for command in COMMANDS}

    def compare(self, number: int, pair: Pair) -> Iterable[Result]:
        """Yield each command's CPU per row in the two traces."""
        traces = [make_trace(self._folder / f"{number}.{at}", shape) for at, shape in enumerate(pair[1:3])]
        for command in pair.commands:
            figures: dict[str, list[float]] = {words: [] for words in pair.words}
            for turn in range(rounds_for(pair.rounds)):
                ways = list(zip(pair.words, traces, (pair.small, pair.large), strict=True))
                for words, trace, shape in ways if turn % 2 == 0 else reversed(ways):
                    took = run(command, self._one_row, trace)
                    figures[words].append(1e6 * took.cpu / shape.rows)
                    self._keep(command, f"{words} {pair.what.partition(',')[0]}", took.peak_mib)
            yield from_rounds(f"{pair.what}: {command}", figures, unit="us CPU", goal=LINEAR_GOAL)
        for trace in traces:
            for file in trace.iterdir():
                file.unlink()

    def _keep(self, command: str, words: str, peak: float) -> None:
        peaks = self.peaks[command]
        peaks[words] = max(peak, peaks.get(words, 0.0))

    def memory(self) -> Iterable[Result]:
        """Yield the most memory of each command, and over which trace."""
        for command, peaks in self.peaks.items():
            if peaks:
                where, most = max(peaks.items(), key=lambda item: item[1])
                yield from_rounds(
                    f"memory: {command}",
                    {"limit": [MEMORY_MIB], "most": [most]},
                    unit="MiB",
                    goal=1.0,
                    note=f"most over {where}",
                )

    def listing(self) -> Result:
        """Return how long a list of a gibibyte of rows lets a person wait."""
        rows = 30_000 if is_quick() else 1_500_000  # of more than 720 bytes
        trace = make_trace(self._folder / "list", Shape(rows, segments=4))
        few, many = [], []
        for _ in range(rounds_for(5)):
            few.append(run("trace ls", self._one_row, self._one_row).wall)
            many.append(run("trace ls", self._one_row, trace).wall)
        result = from_rounds("trace ls, wall time", {"1 row": few, f"{rows:,} rows": many}, unit="s")
        median = result.sides[-1].median
        verdict = "met" if median <= LS_SECONDS else "MISSED"
        note = f"goal: at most {LS_SECONDS:g} s; {median:.2f} s, {verdict}"
        return Result(result.name, result.unit, result.rounds, result.sides, result.goal, note)


def main() -> list[Result]:
    """Compare every pair, then memory and the time that a list takes."""
    with tempfile.TemporaryDirectory(prefix="fpm-scale-") as folder:
        measurement = Measurement(Path(folder))
        results = [
            result for number, pair in enumerate(pairs()) for result in measurement.compare(number, pair)
        ]
        results.append(measurement.listing())
        return [*results, *measurement.memory()]


if __name__ == "__main__":
    run_script(main, __doc__)
