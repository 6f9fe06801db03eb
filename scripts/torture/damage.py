"""Knows what any damage costs: the members that it touches, and nothing is made up (LOSS-09)."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from forwardpass.clock import SystemClock
from forwardpass.counters import Counters
from forwardpass.testing.traces import trace_line
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.report import FileReport
from forwardpass.trace.segments import SegmentNames
from forwardpass.trace.writer import SegmentWriter
from torture.rows import PRODUCER, settings
from torture.run import Run

__all__ = ["check_damage"]

INTACT = "LOSS-09: every complete row of every intact member is read, whatever stands around it"
NOTHING = "LOSS-09: no row is read that was not written"
RANGES = "LOSS-09: the byte ranges of a report follow each other and add up to the file's size"
TORN = "LOSS-09: of a file that was cut exactly the rows of its whole members are read"
SAID = "LOSS-09: a file that lost a row is not called intact"


class _Segment:
    """A segment that the product wrote, and where its members are."""

    def __init__(self, folder: Path, rows_of_members: list[int]) -> None:
        chosen, number = settings(folder), 0
        names = SegmentNames.of(chosen.output_prefix, PRODUCER)
        writer = SegmentWriter(names, chosen, Counters(), SystemClock())
        writer.open()
        for rows in rows_of_members:
            lines = [trace_line(n, wall_time=n * 0.001_37) + b"\n" for n in range(number, number + rows)]
            writer.append(b"".join(lines), rows)
            writer.flush()
            number += rows
        writer.close()
        self.bytes = Path(writer.paths[0]).read_bytes()
        self.members = list(_members(self.bytes))
        """(start, end, lines) of each, as the standard library sees it."""
        self.path = folder / "damaged.jsonl.gz"

    def lines(self) -> Counter[bytes]:
        """Return all that was written."""
        return Counter(line for _, _, lines in self.members for line in lines)

    def beyond(self, start: int, end: int) -> Counter[bytes]:
        """Return the lines of the members that a damage from ``start`` to ``end`` does not touch."""
        return Counter(
            line for first, last, lines in self.members if last <= start or first >= end for line in lines
        )


def _members(data: bytes) -> Iterator[tuple[int, int, list[bytes]]]:
    start = 0
    while start < len(data):
        inflate = zlib.decompressobj(31)
        text = inflate.decompress(data[start:])
        end = len(data) - len(inflate.unused_data)
        yield start, end, text.splitlines()
        start = end


def check_damage(run: Run) -> None:
    """Cut a segment at every byte, flip its bits, overwrite, remove and insert bytes."""
    segment = _Segment(run.sub("damage"), run.dice.choices((1, 2, 3), k=run.times(4, 12)))
    size, every = len(segment.bytes), run.times(5, 1)
    for cut in range(size + 1):
        rows = _read(run, segment, segment.bytes[:cut], cut, size)
        run.note(TORN, rows == segment.beyond(cut, size), f"cut at {cut}")
    flips = 0
    for position in range(0, size, every):
        for bit in range(8) if run.full else (position % 8,):
            damaged = bytearray(segment.bytes)
            damaged[position] ^= 1 << bit
            _read(run, segment, bytes(damaged), position, position + 1)
            flips += 1
    others = run.times(150, 10_000)
    for _ in range(others):
        _read(run, segment, *_damage(run, segment.bytes))
    run.facts["truncations, at every byte of a segment"] = f"{size + 1:,}"
    run.facts["bits flipped in it"] = f"{flips:,}"
    run.facts["other damage: blocks zeroed, overwritten, removed, inserted"] = f"{others:,}"


def _damage(run: Run, data: bytes) -> tuple[bytes, int, int]:
    """Return damaged bytes and the range of the undamaged ones that is touched."""
    dice = run.dice
    start = dice.randrange(len(data))
    end = min(len(data), start + dice.choice((1, 2, 7, 64, 512)))
    kind = dice.randrange(4)
    if kind == 0:
        return data[:start] + bytes(end - start) + data[end:], start, end
    if kind == 1:
        return data[:start] + dice.randbytes(end - start) + data[end:], start, end
    if kind == 2:
        return data[:start] + data[end:], start, end
    return data[:start] + dice.randbytes(end - start) + data[start:], start, start + 1


def _read(run: Run, segment: _Segment, damaged: bytes, start: int, end: int) -> Counter[bytes]:
    """Read the damaged bytes and check what must hold; return the rows."""
    segment.path.write_bytes(damaged)
    reader = TraceReader(segment.path)
    rows = Counter(record.line for record in reader)
    report = reader.report.files[0]
    where = f"{start} to {end}"
    run.note(INTACT, rows >= segment.beyond(start, end), where)
    run.note(NOTHING, rows <= segment.lines(), where)
    run.note(RANGES, _covers(report, len(damaged)), f"{where}: {report.ranges}")
    lost = rows != segment.lines()
    at_end = any(len(damaged) == last for _, last, _ in segment.members) or not damaged
    run.note(SAID, not (lost and report.intact) or at_end, where)
    return rows


def _covers(report: FileReport, size: int) -> bool:
    ranges = report.ranges
    joined = all(left.end == right.start for left, right in pairwise(ranges))
    begins = not ranges or ranges[0].start == 0
    return begins and joined and sum(r.end - r.start for r in ranges) == report.size == size
