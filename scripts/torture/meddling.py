"""Knows what it costs that somebody moves, cuts or deletes segments while they are written (LOSS-15)."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

from forwardpass.counters import Counters
from forwardpass.testing.clock import ManualClock
from forwardpass.testing.traces import trace_line
from forwardpass.trace.segments import SegmentNames
from forwardpass.trace.writer import SegmentWriter
from torture.rows import PRODUCER, read, settings
from torture.run import Run

__all__ = ["check_meddling"]

AFTER = "LOSS-15: what is written after somebody moved, cut or deleted segments is in files that have a name"
ONLY = "LOSS-15: what was taken away is all that is missing, and nothing is there twice"
WRITTEN = "LOSS-15: such meddling is no failed write: every row counts as written"


def check_meddling(run: Run) -> None:
    """Write, and meddle between the writes."""
    rounds = run.times(15, 1000)
    for number in range(rounds):
        _meddle(run, number)
    run.facts["traces meddled with while written"] = f"{rounds:,}"


def _meddle(run: Run, number: int) -> None:
    folder, dice, counters = run.sub(f"meddling{number}"), run.dice, Counters()
    chosen = settings(folder / "x", roll_bytes=dice.choice((3_000, 50_000)), max_segments=1000)
    (folder / "x").mkdir()
    names = SegmentNames.of(chosen.output_prefix, PRODUCER)
    writer = SegmentWriter(names, chosen, counters, ManualClock())
    writer.open()
    taken: set[int] = set()
    last_batch: list[int] = []
    for step in range(30):
        batch = list(range(step * 3, step * 3 + 3))
        writer.append(b"".join(trace_line(n, wall_time=0.5, worker_id="m") + b"\n" for n in batch), 3)
        writer.flush()
        if step % 5 == 4 and step < 29:
            taken |= _interfere(run, folder, step)
        last_batch = batch
    writer.close()
    found = _rows(folder)
    run.note(AFTER, set(last_batch) <= set(found), f"{sorted(found)[-5:]}")
    missing = set(range(90)) - set(found)
    run.note(ONLY, missing <= taken and max(found.values()) == 1, f"missing {missing - taken}")
    run.note(WRITTEN, writer.counts.rows == 90 and not counters.lost, (writer.counts, counters.lost))


def _rows(folder: Path) -> Counter[int]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return Counter(n for counters in read(sorted(files)).counters.values() for n in counters)


def _interfere(run: Run, folder: Path, step: int) -> set[int]:
    """Do something to the newest segment; return the rows that may be gone by it."""
    segments = [path for path in (folder / "x").glob("*.jsonl.gz") if not path.is_symlink()]
    newest = max(segments, key=lambda path: path.name, default=None)
    if newest is None:
        return set()
    before = set(_rows(folder))
    kind = run.dice.randrange(6)
    if kind == 0:
        newest.rename(folder / f"moved{step}.jsonl.gz")
    elif kind == 1:
        newest.unlink()
    elif kind == 2:
        os.truncate(newest, 0)
    elif kind == 3:
        os.truncate(newest, run.dice.randrange(newest.stat().st_size + 1))
    elif kind == 4:
        shutil.rmtree(folder / "x")
    else:
        newest.rename(folder / f"moved{step}.jsonl.gz")
        newest.symlink_to(folder / "nowhere")
    return before - set(_rows(folder))
