"""Knows what a full disk costs (LOSS-07, LOSS-08): counted rows, no damage, and nobody restarts anything."""

from __future__ import annotations

import logging
import os
import resource
import time
from pathlib import Path

from forwardpass.clock import SystemClock
from forwardpass.counters import Counters
from forwardpass.testing.traces import trace_line
from forwardpass.trace.segments import SegmentNames
from forwardpass.trace.sink import TraceSink
from forwardpass.trace.writer import SegmentWriter
from torture.recorder import in_process
from torture.rows import PRODUCER, SOURCE, adds_up, noise, read, settings
from torture.run import Run
from torture.small_disk import small_disk

__all__ = ["check_full_disk"]

DISK_KIBIBYTES = 1536
LEAST_BALLAST_KIBIBYTES = 400
BATCH = 700
LIMIT_SECONDS = 60.0
FILE_LIMIT = 20_000

SOUND = (
    "LOSS-07: on a full disk no damaged byte stays behind: every file is intact whenever nothing is pending"
)
HELD = "LOSS-07: every row that counts as written is in the files, once and in order"
COUNTED = "LOSS-08: what a full disk costs is counted as disk_error, and the counts add up"
RESUMES = "LOSS-08: recording goes on by itself once there is room"
SAID = "LOSS-08: a full disk is said at once, and that writing goes on again as well"
OWN = "LOSS-08: a disk that is full of the producer's own surplus is recorded on"
LARGE = "LOSS-08: where a file may not grow any more, recording goes on in the next one"


class _Said(logging.Handler):
    """What the product says."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class _Filling:
    """A sink that records on a small disk what does not compress."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.folder, self._dice = folder, run.dice
        self.sink = TraceSink(settings(folder, max_segments=100_000, roll_bytes=1 << 31), PRODUCER)
        self.sink.start()
        self._counter = 0

    def offer(self) -> None:
        """Offer a batch, and wait until the writer has dealt with it."""
        payloads = [noise(self._counter + n, self._dice) for n in range(BATCH)]
        self._counter += BATCH
        self.sink.offer_many(SOURCE, payloads)
        end = time.monotonic() + LIMIT_SECONDS
        while self.sink.counts().pending > 2 * BATCH and time.monotonic() < end:
            time.sleep(0.005)

    def settle(self) -> None:
        """Wait until nothing is pending."""
        end = time.monotonic() + LIMIT_SECONDS
        while self.sink.counts().pending and time.monotonic() < end:
            time.sleep(0.01)

    @property
    def refused(self) -> int:
        """Rows that the disk refused."""
        return self.sink.counts().dropped.get("disk_error", 0)


def check_full_disk(run: Run) -> None:
    """Fill a small file system, free it and fill it again; and run into a limit of the file size."""
    folder = run.sub("own")
    with small_disk(folder, 256) as mounted:
        if mounted:
            _fill_with_own_segments(run, folder)
    folder = run.sub("disk")
    with small_disk(folder, DISK_KIBIBYTES) as mounted:
        if mounted:
            _fill_and_free(run, folder)
        else:
            run.skipped["a full disk"] = "mounting a small file system is not allowed here"
    _limit_files(run, run.sub("limit"))


def _fill_and_free(run: Run, folder: Path) -> None:
    said = _Said()
    logging.getLogger("forwardpass").addHandler(said)
    filling, rounds = _Filling(run, folder), run.times(1, 20)
    try:
        for _ in range(rounds):
            _one_round(run, filling, folder / "ballast")
    finally:
        filling.sink.close()
        logging.getLogger("forwardpass").removeHandler(said)
    full = [line for line in said.lines if "cannot be written" in line]
    again = [line for line in said.lines if "is written again" in line]
    run.note(SAID, bool(full) and len(again) >= rounds, said.lines[:4])
    run.facts["times a disk was filled and freed"] = f"{rounds:,}"


def _one_round(run: Run, filling: _Filling, ballast: Path) -> None:
    """Fill the disk, free what others had of it, and at last what the recorder had."""
    before, refused = filling.sink.counts().written, filling.refused
    ballast.write_bytes(bytes(run.dice.randint(LEAST_BALLAST_KIBIBYTES, DISK_KIBIBYTES // 2) * 1024))
    for _ in range(60):
        filling.offer()
        if filling.refused > refused:
            break
    filling.settle()
    run.note(COUNTED, filling.refused > refused, "the disk was never full")
    _look(run, filling, before)
    ballast.unlink()
    _goes_on(run, filling)
    _look(run, filling, before)
    for file in filling.folder.glob("*.jsonl.gz"):
        file.unlink()
    before = filling.sink.counts().written
    _goes_on(run, filling)
    _look(run, filling, before)
    for file in filling.folder.glob("*.jsonl.gz"):
        file.unlink()


def _goes_on(run: Run, filling: _Filling) -> None:
    written = filling.sink.counts().written
    filling.offer()
    filling.settle()
    more = filling.sink.counts().written - written
    run.note(RESUMES, more == BATCH, f"{more} of {BATCH} rows written")


def _look(run: Run, filling: _Filling, before: int) -> None:
    counts, found = filling.sink.counts(), read(filling.folder)
    run.note(SOUND, found.report.intact, [str(problem) for problem in found.report.problems()][:3])
    run.note(
        COUNTED, adds_up(counts) and set(counts.dropped) <= {"disk_error"} and not counts.pending, counts
    )
    rows = found.counters.get(0, [])
    held = len(rows) == counts.written - before and rows == sorted(set(rows))
    run.note(HELD, held, f"{len(rows)} rows of {counts.written - before}")


def _fill_with_own_segments(run: Run, folder: Path) -> None:
    """Two segments fill the disk; the third's first write finds it full, and one of the two is surplus."""
    chosen = settings(folder, roll_bytes=150_000, max_segments=2)
    writer = SegmentWriter(SegmentNames.of(chosen.output_prefix, PRODUCER), chosen, Counters(), SystemClock())
    writer.open()
    number = 0
    for _ in range(run.times(60, 2000)):
        lines = b"".join(
            trace_line(number + n, worker_id=run.dice.randbytes(900).hex()) + b"\n" for n in range(8)
        )
        number += 8
        before = writer.counts.rows
        writer.append(lines, 8)
        writer.flush()
        run.note(OWN, writer.counts.rows >= before + 8 or writer.counts.segments < 3, writer.counts)
    writer.close()
    run.note(SOUND, read(folder).report.intact, read(folder).report.files)


def _limit_files(run: Run, folder: Path) -> None:
    """A limit of the file size gives short writes and then an error, in a process of its own."""

    def work() -> None:
        logging.disable(logging.CRITICAL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, FILE_LIMIT))
        chosen, counters = settings(folder, max_segments=1000), Counters()
        names = SegmentNames.of(chosen.output_prefix, PRODUCER)
        writer = SegmentWriter(names, chosen, counters, SystemClock())
        writer.open()
        for number in range(30):
            writer.append(trace_line(number, worker_id=os.urandom(4000).hex()) + b"\n", 1)
            writer.flush()
        writer.close()
        if writer.counts.rows != 30:
            raise RuntimeError(f"{writer.counts} {counters.lost}")

    status = os.waitpid(in_process(work), 0)[1]
    found = read(folder)
    run.note(LARGE, status == 0 and found.rows == 30, f"status {status}, {found.rows} rows of 30")
    run.note(SOUND, found.report.intact, found.report.files)
