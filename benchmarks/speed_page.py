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


def recorded(results: list[Result]) -> str:
    """Return what recording every pass costs, loses and takes on the disk, one line for each rate."""
    parts = {result.name: result for result in results}
    rows = []
    for what in dict.fromkeys(name.rpartition(":")[0] for name in parts):
        cpu, lost, size = (
            parts[f"{what}: {part}"].sides for part in ("CPU per row", "rows lost", "gzip per row")
        )
        rows.append(
            [
                what.removeprefix("recording, "),
                *(f"{number(side.median)} µs" for side in cpu),
                times(cpu[-1]),
                " / ".join(f"{side.median:.1f} %" for side in lost),
                " / ".join(number(side.median) for side in size),
                ratio(size[-1]),
            ]
        )
    head = (
        "| messages | CPU per row, Dynamo | ours | Dynamo / ours | rows lost, Dynamo / ours "
        "| gzip bytes per row, Dynamo / ours | ratio |"
    )
    return table(head, rows)


def times(side: Side) -> str:
    """Return as :func:`cheaper`, for factors that are small."""
    return f"**{1 / side.ratio:.1f}** ({1 / side.ratio_high:.1f} to {1 / side.ratio_low:.1f})"


def recorded_sample(results: list[Result]) -> str:
    """Return what a payload costs that sampled mode passes over."""
    rows = []
    for result in results:
        theirs, ours = result.sides
        what = result.name.removeprefix("recording a sample, ")
        rows.append([what, f"{number(theirs.median)} µs", f"{number(ours.median)} µs", ratio(ours)])
    return table("| CPU per payload, messages | Dynamo | ours | ratio |", rows)


def plane_ends(head: str) -> Callable[[list[Result]], str]:
    """Return a maker of tables of what ends of an event plane cost, lost and held, one line for each load."""

    def make(results: list[Result]) -> str:
        parts = {result.name: result for result in results}
        rows = []
        for what in dict.fromkeys(name.rpartition(": ")[0] for name in parts):
            cpu = parts[f"{what}: CPU"].sides
            lost, memory = parts.get(f"{what}: lost"), parts.get(f"{what}: memory")
            row = [
                re.sub(r"^plane(?: relay)?,? ", "", what),
                *(f"{number(side.median)} µs" for side in (cpu[0], cpu[-1])),
                ratio(cpu[-1]),
            ]
            if "asyncio" in head:
                row[2:2] = [f"{number(cpu[1].median)} µs" if len(cpu) == 3 else ""]
            row += [_both(lost, " %", "not known")] if "lost" in head else []
            row += [_both(memory, " MiB", "")] if "memory" in head else []
            rows.append(row)
        return table(head, rows)

    return make


def _both(result: Result | None, unit: str, otherwise: str) -> str:
    if result is None:
        return otherwise
    return " / ".join(f"{number(side.median)}{unit}" for side in (result.sides[0], result.sides[-1]))


def scaled(results: list[Result]) -> str:
    """Return each command's CPU per row in the larger of two traces, and its ratio to the smaller one."""
    commands = list(dict.fromkeys(result.name.rpartition(": ")[2] for result in results))
    pairs: dict[str, dict[str, Result]] = {}
    for result in results:
        what, _, command = result.name.rpartition(": ")
        small, large = result.sides
        pairs.setdefault(f"{what.partition(',')[0]}: {small.label} to {large.label}", {})[command] = result
    rows = []
    for what, found in pairs.items():
        cells = [
            f"{number(found[command].sides[-1].median)} ({number(found[command].sides[-1].ratio)})"
            if command in found
            else ""
            for command in commands
        ]
        rows.append([what, *cells])
    return table(f"| CPU per row, µs (ratio) | {' | '.join(f'`{each}`' for each in commands)} |", rows)


def memory(results: list[Result]) -> str:
    """Return the most memory that each command took."""
    rows = (
        [f"`{result.name.removeprefix('memory: ')}`", f"{number(result.sides[-1].median)} MiB",
         result.note.removeprefix("most over ")]
        for result in results
    )  # fmt: skip
    return table("| | most memory (`VmHWM`) | over |", rows)


def columns(results: list[Result]) -> str:
    """Return every way's time per row, a line for each comparison, and how often ours fits into the first."""
    rows = []
    for result in results:
        first, *others, ours = result.sides
        between = ", ".join(f"{side.label}: {number(side.median)} µs" for side in others)
        rows.append(
            [result.name, f"{number(first.median)} µs", between, f"{number(ours.median)} µs", times(ours)]
        )
    return table("| what | `gzip` + `json` | others | ours | `gzip` + `json` / ours |", rows)


TABLES: dict[str, tuple[str, Callable[[list[Result]], str]]] = {
    "added": (r"added, ", added),
    "long queue": (r"added by forwardpass", plain("| ours | 10 waiting | 4,000 waiting | ratio |")),
    "step": (r"step, ", step),
    "publisher's thread": (
        r"publisher's thread, ",
        plain("| CPU of the publisher's thread, scheduled + waiting | Dynamo | ours | ratio |"),
    ),
    "add_request": (
        r"add_request, ",
        plain("| `add_request`, scheduled + waiting | vLLM alone | ours | ratio |"),
    ),
    "publisher, steps": (
        r"step with.*(median|percentile)",
        plain("| | no publisher | Dynamo's | ours, ready messages | ours, counting | counting / none |"),
    ),
    "publisher, effect": (
        r"(effect on|hand-over with)",
        plain("| | Dynamo's | ours, ready messages | ours, counting | counting / Dynamo's |"),
    ),
    "throughput": (r"real vLLM, ", throughput),
    "raw stream": (r"raw stream, ", plain("| CPU per message | multipart | frame by frame | ratio |")),
    "stalled reader": (r"reader's ", stalled),
    "scaled": (r"(rows|gzip members|segments|producers|streams)\b.*: ", scaled),
    "memory": (r"memory: ", memory),
    "list": (r"trace ls, wall", plain("| | a trace of one row | a gibibyte of rows | ratio |")),
    "columns": (r"(into |one question)", columns),
    "plane relay": (
        r"plane relay, .*: (CPU|lost)$",
        plane_ends("| messages | CPU per event, Dynamo | ours | ratio | lost, Dynamo / ours |"),
    ),
    "plane readers": (
        r"plane (recv|track), ",
        plane_ends(
            "| | CPU per event, Dynamo | ours, asyncio | ours, blocking | ratio | lost, Dynamo / ours |"
        ),
    ),
    "plane publishers": (
        r"plane, .* publishers?: ",
        plane_ends(
            "| | CPU per event, Dynamo | ours | ratio | lost, Dynamo / ours | memory, Dynamo / ours |"
        ),
    ),
    "recorded": (r"recording, ", recorded),
    "recorded sample": (r"recording a sample, ", recorded_sample),
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
