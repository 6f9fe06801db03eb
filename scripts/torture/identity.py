"""Knows that every payload is somewhere, once, at every instant, whatever happens meanwhile (LOSS-10)."""

from __future__ import annotations

import errno
import logging
import sys
import threading
import time

from forwardpass.config.settings import CaptureMode
from forwardpass.trace.segment_file import SegmentFile
from forwardpass.trace.sink import TraceCounts, TraceSink
from torture.rows import PRODUCER, SOURCE, adds_up, payload, settings
from torture.run import Run

__all__ = ["check_identity"]

SUM = "LOSS-10: offered = written + sampled_out + dropped + pending at every instant, and nothing is negative"
FORWARD = "LOSS-10: no count ever goes back"
END = "LOSS-10: after a stop nothing is pending, and every reason for a drop that was caused is counted"

REASONS = {"queue_full", "malformed", "disk_error", "closed"}


class _Ill(SegmentFile):
    """A file that refuses every third member."""

    __slots__ = ()
    asked = 0

    def append(self, data: bytes) -> None:
        _Ill.asked += 1
        if _Ill.asked % 3 == 0:
            raise OSError(errno.EIO, "refused")
        super().append(data)


def check_identity(run: Run) -> None:
    """Look at the counts of a sink all the time while everything that can happen to a payload happens."""
    logging.disable(logging.CRITICAL)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    looks = 0
    try:
        for mode in CaptureMode:
            looks += _watch(run, mode, run.times(1, 30))
    finally:
        sys.setswitchinterval(switch)
        logging.disable(logging.NOTSET)
    run.facts["looks at the counts while threads offered"] = f"{looks:,}"


def _watch(run: Run, mode: CaptureMode, seconds: float) -> int:
    chosen = settings(
        run.sub(mode.value),
        mode=mode,
        queue_capacity=8192,
        roll_bytes=20_000,
        max_segments=2,
        sample_interval_seconds=0.003,
    )
    sink, stop = TraceSink(chosen, PRODUCER, create_file=_Ill), threading.Event()
    sink.start()

    def offer(rank: int) -> None:
        counter = 0
        while not stop.is_set():
            sink.offer_many(SOURCE, [payload(counter % 1000, rank)] * (9000 if counter % 50 == 0 else 40))
            sink.offer(SOURCE, b"junk")
            counter += 1

    threads = [threading.Thread(target=offer, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    end, looks = time.monotonic() + seconds, 0
    last = sink.counts()
    closer = threading.Timer(seconds * 0.8, sink.close, [60.0])
    closer.start()
    while time.monotonic() < end:
        last, before = sink.counts(), last
        run.note(SUM, adds_up(last), last)
        run.note(FORWARD, _went_on(before, last), (before, last))
        looks += 1
    stop.set()
    for thread in (*threads, closer):
        thread.join(60.0)
    sink.close(60.0)
    counts = sink.counts()
    run.note(SUM, adds_up(counts), counts)
    run.note(END, not counts.pending and set(counts.dropped) >= REASONS - _without(mode), counts)
    return looks


def _without(mode: CaptureMode) -> set[str]:
    """Return the reasons that a sampled trace need not meet: it writes little and reads little."""
    return {"disk_error", "queue_full"} if mode is CaptureMode.SAMPLED else set()


def _went_on(before: TraceCounts, after: TraceCounts) -> bool:
    names = ("offered", "written", "sampled_out", "dropped_total", "segments", "flushes")
    return all(getattr(after, name) >= getattr(before, name) for name in names)
