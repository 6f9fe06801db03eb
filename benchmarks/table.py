"""Knows how to print measured comparisons as Markdown tables, for the page on speed.

    python benchmarks/run.py vllm --json FILE; python benchmarks/table.py FILE...

Comparisons of the same ways in the same unit share a table. The last column is the ratio of the last way to
the first, with the spread from the 10th to the 90th percentile of the rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from harness import Result

__all__ = ["tables"]


def figure(value: float) -> str:
    """Return three significant digits without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 99.5 else f"{value:.3g}"


def row(result: Result) -> str:
    """Return one comparison's line."""
    last = result.sides[-1]
    cells = [result.name, *(figure(side.median) for side in result.sides)]
    cells.append(f"{last.ratio:.3g} ({last.ratio_low:.3g} to {last.ratio_high:.3g})")
    return f"| {' | '.join(cells)} |"


def tables(results: Sequence[Result]) -> str:
    """Return all tables, in order."""

    def head(result: Result) -> tuple[str, ...]:
        return (result.unit, *(side.label for side in result.sides))

    parts = []
    for (unit, *labels), group in groupby(results, head):
        columns = [unit, *labels, f"{labels[-1]} / {labels[0]}"]
        lines = [f"| {' | '.join(columns)} |", f"| {' | '.join(['---'] * len(columns))} |"]
        found = list(group)
        notes = [f"{result.name}: {result.note}" for result in found if result.note]
        parts.append("\n".join([*lines, *map(row, found), *notes]))
    return "\n\n".join(parts)


def main() -> int:
    """Print the results in the files given."""
    results = [
        result
        for path in sys.argv[1:]
        for result in msgspec.json.decode(Path(path).read_bytes(), type=list[Result])
    ]
    order = sorted(results, key=lambda each: (each.unit, [side.label for side in each.sides]))
    print(tables(order))
    return 0


if __name__ == "__main__":
    sys.exit(main())
