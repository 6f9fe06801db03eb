"""Knows what a power loss costs in each mode of FORWARDPASS_FSYNC (LOSS-04, LOSS-05, LOSS-06)."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from forwardpass.clock import SystemClock
from forwardpass.config.settings import Fsync
from forwardpass.counters import Counters
from forwardpass.testing.traces import trace_line
from forwardpass.trace.preflight import prove_writable
from forwardpass.trace.segments import SegmentNames
from forwardpass.trace.writer import SegmentWriter
from torture.power_loss import PowerLoss
from torture.rows import PRODUCER, settings
from torture.run import Run

__all__ = ["check_power"]

NEVER = "LOSS-04: with fsync=never the writer forces nothing to the disk, and waits for nothing"
SEGMENT = "LOSS-05: with fsync=segment a power loss leaves every finished segment whole, with its name"
FLUSH = "LOSS-06: with fsync=flush a power loss leaves every row that counts as written, at every instant"
REFUSED = "LOSS-06: a row whose file or folder the disk refuses to force does not count as written"


class _Recording:
    """A writer on a disk that may lose its power at any instant."""

    def __init__(self, base: Path, fsync: Fsync) -> None:
        base.mkdir()
        self.folder = base / "new" / "deep"  # made by the product, so its names must reach the disk as well
        self.power = PowerLoss(base)
        self.counters = Counters()
        self.names = SegmentNames.of(settings(self.folder).output_prefix, PRODUCER)
        chosen = settings(self.folder, fsync=fsync, roll_bytes=6_000, max_segments=4)
        self.writer = SegmentWriter(self.names, chosen, self.counters, SystemClock())
        self.number = 0

    def begin(self) -> None:
        """Open the trace as a sink does."""
        prove_writable(self.names.prefix)
        self.writer.open()
        self.power.syncs.clear()

    def write(self, rows: int) -> None:
        """Write a member of so many rows."""
        lines = b"".join(trace_line(number) + b"\n" for number in range(self.number, self.number + rows))
        self.number += rows
        self.writer.append(lines, rows)
        self.writer.flush()

    def lost(self, *, finished_only: bool = False) -> list[str]:
        """Return the segments that a power loss now would cut or hide."""
        files = sorted(self.folder.glob("*.jsonl.gz"))
        files = files[:-1] if finished_only else files
        return [file.name for file in files if (self.power.left(file) or b"") != file.read_bytes()]


def check_power(run: Run) -> None:
    """Cut the power after every write of a recording, in each mode."""
    writes = run.times(60, 3000)
    for fsync in Fsync:
        recording = _Recording(run.folder / fsync.value, fsync)
        with recording.power:
            recording.begin()
            for number in range(writes):
                recording.write(run.dice.randint(1, 9))
                if fsync is Fsync.NEVER:
                    run.note(NEVER, not recording.power.syncs, recording.power.syncs[:3])
                else:
                    lost = recording.lost(finished_only=fsync is Fsync.SEGMENT)
                    run.note(SEGMENT if fsync is Fsync.SEGMENT else FLUSH, not lost, lost)
                if number % 23 == 22 and fsync is Fsync.FLUSH:
                    _lose_the_folder(recording)
                if number % 7 == 6 and fsync is Fsync.FLUSH:
                    _refuse(run, recording)
            recording.writer.close()
    run.facts["power losses simulated"] = f"{3 * writes:,}"


def _lose_the_folder(recording: _Recording) -> None:
    """Somebody removes the folder: the writer makes it again, and its new names must reach the disk."""
    shutil.rmtree(recording.folder.parent)
    recording.power.forget(recording.folder.parent)


def _refuse(run: Run, recording: _Recording) -> None:
    """The disk refuses to force a file, or a folder."""
    wanted = run.dice.random() < 0.5

    def refuse(path: str) -> None:
        if os.path.isdir(path) == wanted:
            raise OSError(errno.EIO, "refused")

    before, begun = recording.writer.counts.rows, len(recording.power.syncs)
    recording.power.refuse = refuse
    recording.write(3)
    recording.power.refuse = lambda path: None
    counted = recording.writer.counts.rows - before
    lost = recording.lost() if counted else []
    run.note(
        REFUSED, not lost, f"{counted} rows counted; {recording.power.syncs[begun:]} forced; {lost} lost"
    )
