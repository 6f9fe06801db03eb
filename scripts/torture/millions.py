"""Knows that a recorder passes tens of millions of records in flat memory, and that its counts add up."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from pathlib import Path

from soak.memory import MemorySample, Trend, look, slope, trend_of

from forwardpass.trace.sink import TraceSink
from torture.rows import PRODUCER, SOURCE, adds_up, payload, read, settings
from torture.run import Run

__all__ = ["check_millions"]

DISTINCT = 4096
RANKS = 4
ROLL_BYTES = 32 << 20
SEGMENTS = 3
LOOK_SECONDS = 0.5
MOST_STEP_MIB = 4.0

FLAT = "LOSS-10: memory is flat over the whole run: it grows by less than 4 MiB after it has warmed up"
SUM = "LOSS-10: after the whole run offered is written, nothing is pending, nothing was dropped"
LEFT = "LOSS-12: what retention left is intact, in order, and no more than the limit"


def check_millions(run: Run) -> None:
    """Offer prepared payloads as fast as the sink takes them."""
    wanted = run.times(200_000, 50_000_000)
    folder, samples = run.sub("millions"), [look(os.getpid())]
    batches = [[payload(n, rank) for n in range(DISTINCT)] for rank in range(RANKS)]
    chosen = settings(folder, roll_bytes=ROLL_BYTES, max_segments=SEGMENTS, queue_capacity=8 * DISTINCT)
    sink = TraceSink(chosen, PRODUCER)
    sink.start()
    began = time.monotonic()
    next_look, offered = began, 0
    while offered < wanted:
        while sink.room() < DISTINCT:
            time.sleep(0.002)
        offered += sink.offer_many(SOURCE, batches[offered // DISTINCT % RANKS])
        if time.monotonic() >= next_look:
            samples.append(look(os.getpid()))
            next_look += LOOK_SECONDS
            run.note(SUM, adds_up(sink.counts()), sink.counts())
    sink.close(60.0)
    seconds, counts = time.monotonic() - began, sink.counts()
    run.note(SUM, counts.offered == counts.written == offered and adds_up(counts), counts)
    _check_left(run, folder)
    _check_memory(run, samples)
    run.facts["records through one recorder"] = f"{offered:,} in {seconds:.0f} s"
    run.facts["their text and their files"] = (
        f"{counts.uncompressed_bytes / 1e9:.1f} GB, {counts.compressed_bytes / 1e9:.2f} GB "
        f"in {counts.segments} segments"
    )


def _check_left(run: Run, folder: Path) -> None:
    found = read(folder)
    ordered = all(
        all((after - before) % DISTINCT == 1 or after == 0 for before, after in pairwise(c))
        for c in found.counters.values()
    )
    files = len(found.report.files)
    whole = found.report.intact and not found.wrong and files <= SEGMENTS
    run.note(LEFT, whole and ordered, f"{files} files, in order: {ordered}, {found.wrong[:2]}")


def _check_memory(run: Run, samples: list[MemorySample]) -> None:
    trend: Trend | None = trend_of("recorder", samples)
    if trend is None:  # the short form
        return
    grew = trend.late_mib - trend.early_mib
    run.note(FLAT, grew < MOST_STEP_MIB and trend.threads[1] <= trend.threads[0], trend)
    warm = samples[len(samples) // 5 :]
    kib = slope([(s.at / 60, s.uss) for s in warm[:: max(1, len(warm) // 400)]])
    run.facts["memory of its process"] = (
        f"{trend.early_mib:.1f} MiB early, {trend.late_mib:.1f} MiB late, {kib:+.0f} KiB a minute"
    )
