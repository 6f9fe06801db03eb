"""Knows how to write the tables of docs/explanation/speed.md from what was measured.

    python benchmarks/run.py WORD ... --json FILE
    python benchmarks/speed_page.py FILE ...

Each table stands between ``<!-- figures: NAME -->`` and ``<!-- end -->``. One whose comparisons are not in
the files stays as it is.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from harness import Result, Side

__all__ = ["TABLES", "filled"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "speed.md"
STEPS_SHOWN = ("32 scheduled + 10", "256 scheduled + 100", "1024 scheduled + 1000", "1024 scheduled + 4000")


def number(value: float) -> str:
    """Return a figure with two or three significant digits, never with an exponent."""
    if abs(value) >= 99.5:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.95 else f"{value:.2g}" if abs(value) < 1 else f"{value:.2f}"


def ratio(side: Side) -> str:
    """Return a ratio with its spread."""
    return f"{number(side.ratio)} ({number(side.ratio_low)} to {number(side.ratio_high)})"


def cheaper(side: Side) -> str:
    """Return how many times cheaper the first way's figure was divided by, with its spread."""
    return f"**{1 / side.ratio:.0f}** ({1 / side.ratio_high:.0f} to {1 / side.ratio_low:.0f})"


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    columns = head.count("|") - 1
    lines = [head, "|" + " --- |" * columns]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def load_of(result: Result) -> str:
    """Return "256 + 100" of a name that ends in "…, 256 scheduled + 100 waiting"."""
    found = re.search(r"(\d+) scheduled \+ (\d+) waiting(, steady)?", result.name)
    if found is None:
        return result.name
    return f"{int(found[1]):,} + {int(found[2]):,}{', steady' if found[3] else ''}"


def added(results: list[Result]) -> str:
    """Return what each scheduler adds to vLLM's own methods."""
    rows = []
    for result in results:
        clocks, *others = (result.sides[2], result.sides[0], result.sides[1], result.sides[3])
        rows.append(
            [
                load_of(result),
                *(number(side.median) for side in others),
                number(clocks.median),
                cheaper(others[-1]),
            ]
        )
    head = (
        "| scheduled + waiting | Dynamo, µs | running variance, µs | ours, µs | the clocks alone, µs "
        "| Dynamo / ours |"
    )
    return table(head, rows)


def step(results: list[Result]) -> str:
    """Return what each scheduler adds to the processor time of a whole step."""
    rows = []
    for result in results:
        if not any(shown in result.name for shown in STEPS_SHOWN):
            continue
        alone, *others = result.sides
        more = [f"{number(side.median - alone.median)} ({100 * (side.ratio - 1):+.1f} %)" for side in others]
        rows.append([load_of(result), number(alone.median), *more])
    head = "| scheduled + waiting | vLLM alone, µs | Dynamo adds | running variance adds | ours adds |"
    return table(head, rows)


def plain(head: str) -> Callable[[list[Result]], str]:
    """Return a maker of tables with every way's median and the last one's ratio to the first."""

    def make(results: list[Result]) -> str:
        rows = (
            [
                load_of(result) if "scheduled" in head else result.name,
                *(
                    f"{number(side.median)} {result.unit.removesuffix(' CPU').replace('us', 'µs')}"
                    for side in result.sides
                ),
                ratio(result.sides[-1]),
            ]
            for result in results
        )
        return table(head, rows)

    return make


def throughput(results: list[Result]) -> str:
    """Return the ratios of throughput with their intervals."""
    rows = []
    for result in results:
        found = re.match(
            r"throughput on/off ([\d.]+), 95 % interval ([\d.]+) to ([\d.]+); (\d+) pairs", result.note
        )
        if found is None:
            raise ValueError(f"no interval: {result.note}")
        off, on = result.sides
        rows.append(
            [
                result.name.removeprefix("real vLLM, ").removesuffix(", time per token"),
                number(1e6 / off.median),
                number(1e6 / on.median),
                f"**{found[1]}** ({found[2]} to {found[3]})",
                found[4],
            ]
        )
    head = "| | off, tokens/s | on, tokens/s | throughput on / off (95 % interval) | pairs |"
    return table(head, rows)


def stalled(results: list[Result]) -> str:
    """Return what stalled readers lose, and what memory both ends take meanwhile."""
    figures = {result.name: [side.median for side in result.sides] for result in results}
    rows = []
    for what in dict.fromkeys(name.rpartition(":")[0] for name in figures):
        lost, sender, reader = (figures[f"{what}: {part}"] for part in ("lost", "sender grew", "reader grew"))
        memory = [f"{number(one)} + {number(other)} MB" for one, other in zip(sender, reader, strict=True)]
        rows.append([what, *(f"{each:.1f} %" for each in lost), *memory])
    head = "| | lost, ZMQ's defaults | lost, ours | sender + reader grew, ZMQ's defaults | the same, ours |"
    return table(head, rows)


TABLES: dict[str, tuple[str, Callable[[list[Result]], str]]] = {
    "added": (r"added, ", added),
    "long queue": (r"added by forwardpass", plain("| ours | 10 waiting | 4,000 waiting | ratio |")),
    "step": (r"step, ", step),
    "add_request": (
        r"add_request, ",
        plain("| `add_request`, scheduled + waiting | vLLM alone | ours | ratio |"),
    ),
    "publisher, steps": (
        r"step with.*(median|percentile)",
        plain("| | no publisher | Dynamo's | ours | ours / none |"),
    ),
    "publisher, effect": (r"(effect on|hand-over with)", plain("| | Dynamo's | ours | ratio |")),
    "throughput": (r"real vLLM, ", throughput),
    "raw stream": (r"raw stream, ", plain("| CPU per message | multipart | frame by frame | ratio |")),
    "stalled reader": (r"reader's ", stalled),
}
"""Each table: which comparisons are in it, and how it is made."""


def filled(page: str, results: list[Result]) -> str:
    """Return ``page`` with every table anew that ``results`` have figures for."""
    for name, (pattern, make) in TABLES.items():
        chosen = [result for result in results if re.match(pattern, result.name)]
        marks = (f"<!-- figures: {name} -->", "<!-- end -->")
        if chosen and marks[0] in page:
            before, _, rest = page.partition(marks[0])
            _, _, after = rest.partition(marks[1])
            page = f"{before}{marks[0]}\n\n{make(chosen)}\n\n{marks[1]}{after}"
    return page


def read(path: str) -> list[Result]:
    """Return the results in a file; JSON has no infinity, so a ratio that is missing is one."""
    found = msgspec.json.decode(Path(path).read_bytes())
    for result in found:
        for side in result["sides"]:
            side.update({name: math.inf for name, value in side.items() if value is None})
    return msgspec.convert(found, list[Result])


def main() -> int:
    """Write the page."""
    results = [result for path in sys.argv[1:] for result in read(path)]
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
