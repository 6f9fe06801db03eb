"""Knows what retention removes, and that it removes nothing else (LOSS-11, LOSS-12)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forwardpass.clock import SystemClock
from forwardpass.counters import Counters
from forwardpass.testing.traces import trace_line
from forwardpass.trace.segment_file import SegmentFile
from forwardpass.trace.segments import SegmentNames
from forwardpass.trace.writer import SegmentWriter
from torture.recorder import Recorder
from torture.rows import PRODUCER, payload, read, settings
from torture.run import Run

__all__ = ["check_retention"]

SLOW, FAST = 20, 4000

LIVE = "LOSS-11: a segment that another recorder of the same producer writes is never removed"
KEPT = "LOSS-11: what such a recorder counts as written is in the files"
FOREIGN = "LOSS-11: what is not exactly a regular segment of this producer is never removed or changed"
OTHER = "LOSS-11: two recorders of different producers leave each other's files alone"
CAP = "LOSS-12: there is never more than one segment above the limit, and none after a flush"
BYTES = "LOSS-12: the text of a producer's segments is never more than one segment above the limit"


def check_retention(run: Run) -> None:
    """Let recorders roll beside live ones, decoys and each other, and watch every file that goes."""
    _decoys(run, run.sub("decoys"))
    _cap(run, run.sub("cap"))
    pairs = run.times(1, 20)
    for number in range(pairs):
        _two_recorders(run, run.sub(f"pair{number}"), PRODUCER, PRODUCER)
        _two_recorders(run, run.sub(f"apart{number}"), PRODUCER, "78")
    run.facts["pairs of recorders with one prefix"] = f"{2 * pairs:,}"


def _two_recorders(run: Run, folder: Path, first: str, second: str) -> None:
    """One writes little and keeps its segment for long; the other rolls and removes all the time."""
    slow = Recorder(folder, producer=first, max_segments=2)
    slow.feed(0, [payload(n) for n in range(SLOW)])
    _wait_for(folder, f"fpm.{first}.000000.jsonl.gz")
    fast = Recorder(folder, producer=second, max_segments=2, roll_bytes=20_000)
    for start in range(0, FAST, 400):
        while not fast.feed(1, [payload(n, 1) for n in range(start, start + 400)]):
            time.sleep(0.001)
    fast.wait_for_offers(len(fast.batches))
    slow.feed(0, [payload(n) for n in range(SLOW, 2 * SLOW)])
    slow.wait_for_offers(len(slow.batches))
    fast.end(signal.SIGTERM)
    live = (folder / f"fpm.{first}.000000.jsonl.gz").exists()
    slow.end(signal.SIGTERM)
    found = read(folder)
    whole = found.counters.get(0) == list(range(2 * SLOW)) and found.report.intact
    fast_rows = found.counters.get(1, [])
    pruned = bool(fast_rows) and fast_rows == list(range(fast_rows[0], FAST)) and fast_rows[0] > 0
    run.note(LIVE if first == second else OTHER, live, sorted(path.name for path in folder.iterdir()))
    run.note(KEPT if first == second else OTHER, whole and pruned, f"{found.counters.get(0)} {fast_rows[:1]}")


def _wait_for(folder: Path, name: str) -> None:
    end = time.monotonic() + 30.0
    while not (folder / name).exists():
        if time.monotonic() > end:
            raise TimeoutError(name)
        time.sleep(0.01)


def _decoys(run: Run, folder: Path) -> None:
    outside = folder.parent / "outside"
    outside.write_text("keep")
    names = (
        "fpm.77.0000001.jsonl.gz", "fpm.77.00001.jsonl.gz", "fpm.77.1.jsonl.gz", "fpm.7.000000.jsonl.gz",
        "fpm.78.000000.jsonl.gz", "fpm.77.x.jsonl.gz", "fpm.77.000001.jsonl", "xfpm.77.000001.jsonl.gz",
        "fpm.77.000001.jsonl.gz.tmp", "fpm.77.000001.jsonl.gz.lock", "fpm.77.+00001.jsonl.gz",
    )  # fmt: skip
    for name in names:
        (folder / name).write_text("keep")
    (folder / "fpm.77.000000.jsonl.gz").mkdir()
    (folder / "fpm.77.000001.jsonl.gz").symlink_to(outside)
    os.mkfifo(folder / "fpm.77.000002.jsonl.gz")
    decoys = set(folder.iterdir())
    _write(folder, 40, roll_bytes=1_000, max_segments=1)
    left = set(folder.iterdir())
    unchanged = all((folder / name).exists() and (folder / name).read_text() == "keep" for name in names)
    ok = decoys <= left and unchanged and outside.read_text() == "keep" and len(left - decoys) == 1
    run.note(FOREIGN, ok, sorted(path.name for path in decoys - left))


def _cap(run: Run, folder: Path) -> None:
    """Look at the folder whenever a segment is made and after each flush."""
    limit, roll_bytes = 3, 20_000

    def segments() -> list[Path]:
        return sorted(folder.glob("fpm.77.*.jsonl.gz"))

    def text(paths: list[Path]) -> int:
        report = read(paths).report
        return report.text_bytes

    class Watched(SegmentFile):
        __slots__ = ()

        def append(self, data: bytes) -> None:
            super().append(data)
            run.note(CAP, len(segments()) <= limit + 1, segments())
            run.note(BYTES, text(segments()) <= (limit + 1) * roll_bytes, text(segments()))

    _write(
        folder,
        run.times(300, 5000),
        roll_bytes=roll_bytes,
        max_segments=limit,
        create=Watched,
        after=lambda: run.note(CAP, len(segments()) <= limit, segments()),
    )


def _write(
    folder: Path,
    rows: int,
    *,
    create: Callable[[str], SegmentFile] = SegmentFile,
    after: Callable[[], object] = lambda: None,
    **changes: Any,
) -> None:
    chosen = settings(folder, **changes)
    names = SegmentNames.of(chosen.output_prefix, PRODUCER)
    writer = SegmentWriter(names, chosen, Counters(), SystemClock(), create=create)
    writer.open()
    for number in range(rows):
        writer.append(trace_line(number) + b"\n", 1)
        if number % 3 == 2:
            writer.flush()
            after()
    writer.close()
