"""Knows a disk that fails at random in every way a file can, and what must hold on it (LOSS-07, LOSS-08)."""

from __future__ import annotations

import errno
import logging
import os
import random
from collections.abc import Iterator

from forwardpass.config.settings import Fsync
from forwardpass.counters import Counters
from forwardpass.testing.clock import ManualClock
from forwardpass.testing.traces import trace_line
from forwardpass.trace.report import ProblemKind
from forwardpass.trace.segment_file import SegmentFile
from forwardpass.trace.segments import SegmentNames
from forwardpass.trace.writer import SegmentWriter
from torture.rows import PRODUCER, read, settings
from torture.run import Run

__all__ = ["check_faults"]

ROWS_EACH = 120
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

ROWS = "LOSS-07: on a disk that fails at random the files hold the rows that count as written, in order"
BACK = "LOSS-07: nothing is damaged but the ends of segments that could not be cut back"
LOST = "LOSS-08: on a disk that fails at random every row is counted as written or as lost"
RESUMES = "LOSS-08: once the disk works again the next row is written"
SHORT = "LOSS-07: a write that is taken in pieces is whole in the end"


class _Disk:
    """A disk whose every operation may fail or do half."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.failing = True
        self.kept_whole = False
        """Whether a whole member could not be cut off that counts as lost."""
        self.uncut: set[str] = set()
        """Segments that could not be cut back."""

    def fails(self, often: float) -> None:
        """Fail with this likelihood."""
        if self.failing and self.dice.random() < often:
            number = self.dice.choice(ERRORS)
            raise OSError(number, os.strerror(number))

    def file(self, path: str) -> SegmentFile:
        """Create a segment on this disk."""
        self.fails(0.1)
        file = _File(path)
        file.disk = self
        return file


class _File(SegmentFile):
    """A real file on such a disk."""

    __slots__ = ("disk",)
    disk: _Disk

    def size(self) -> int:
        self.disk.fails(0.03)
        return super().size()

    def append(self, data: bytes) -> None:
        if self.disk.failing and self.disk.dice.random() < 0.25:
            super().append(data[: self.disk.dice.randrange(len(data))])
            self.disk.uncut.add(self.path)
            self.disk.fails(1.0)
        super().append(data)

    def truncate(self, size: int) -> None:
        if self.path not in self.disk.uncut:
            self.disk.kept_whole = True
        self.disk.fails(0.3)
        super().truncate(size)
        self.disk.uncut.discard(self.path)

    def sync(self) -> None:
        self.disk.fails(0.1)
        super().sync()


def check_faults(run: Run) -> None:
    """Write on disks that fail at random, and on a kernel that takes writes in pieces."""
    logging.disable(logging.CRITICAL)
    disks = run.times(20, 500)
    try:
        for number in range(disks):
            _write_on(run, number)
        _write_in_pieces(run)
    finally:
        logging.disable(logging.NOTSET)
    run.facts["disks that fail at random"] = f"{disks:,}"


def _write_on(run: Run, number: int) -> None:
    folder, counters = run.sub(f"faults{number}"), Counters()
    disk = _Disk(random.Random(run.dice.random()))
    chosen = settings(
        folder,
        fsync=disk.dice.choice(list(Fsync)),
        roll_bytes=disk.dice.choice((2_000, 50_000)),
        max_segments=10_000,
    )
    names = SegmentNames.of(chosen.output_prefix, PRODUCER)
    writer = SegmentWriter(names, chosen, counters, ManualClock(), create=disk.file)
    writer.open()
    sure: set[int] = set()
    for batch in _batches(disk.dice):
        before = writer.counts.rows
        writer.append(b"".join(trace_line(counter) + b"\n" for counter in batch), len(batch))
        writer.flush()
        if writer.counts.rows - before == len(batch):
            sure |= set(batch)
    disk.failing = False
    before = writer.counts.rows
    writer.append(trace_line(ROWS_EACH) + b"\n", 1)
    writer.close()
    run.note(RESUMES, writer.counts.rows == before + 1, writer.counts)
    found = read(folder)
    run.note(
        LOST,
        writer.counts.rows + sum(counters.lost.values()) == ROWS_EACH + 1,
        (writer.counts, counters.lost),
    )
    rows = found.counters.get(0, [])
    more = len(rows) - writer.counts.rows
    whole = rows == sorted(set(rows)) and sure <= set(rows) and (more == 0 or (more > 0 and disk.kept_whole))
    run.note(
        ROWS,
        whole,
        f"missing {sorted(sure - set(rows))}, {more} more than counted, in order {rows == sorted(set(rows))}",
    )
    damaged = {report.path for report in found.report.files if not report.intact}
    kinds = {kind for report in found.report.files for kind in report.problem_counts}
    run.note(BACK, damaged <= disk.uncut and kinds <= {ProblemKind.TORN_MEMBER}, (damaged, disk.uncut, kinds))


def _batches(dice: random.Random) -> Iterator[list[int]]:
    first = 0
    while first < ROWS_EACH:
        count = min(dice.randint(1, 6), ROWS_EACH - first)
        yield list(range(first, first + count))
        first += count


def _write_in_pieces(run: Run) -> None:
    folder, real, pieces = run.sub("pieces"), os.write, []

    def short(descriptor: int, data: bytes) -> int:
        pieces.append(descriptor)
        return real(descriptor, data[: max(1, len(data) // 3)])

    chosen = settings(folder)
    writer = SegmentWriter(SegmentNames.of(chosen.output_prefix, PRODUCER), chosen, Counters(), ManualClock())
    writer.open()
    os.write = short
    try:
        for number in range(5):
            writer.append(trace_line(number) + b"\n", 1)
            writer.flush()
    finally:
        os.write = real
    writer.close()
    found = read(folder)
    whole = found.counters == {0: list(range(5))} and found.report.intact and len(pieces) > 20
    run.note(SHORT, whole, found.report.files)
