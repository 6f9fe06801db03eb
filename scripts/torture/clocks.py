"""Knows that a step of the wall clock, either way, changes the stamps and nothing else (LOSS-17)."""

from __future__ import annotations

import random
import threading
import time

from forwardpass.clock import SystemClock
from forwardpass.config.settings import CaptureMode
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.sink import TraceSink
from torture.rows import PRODUCER, SOURCE, payload, settings
from torture.run import Run

__all__ = ["check_clocks"]

HOUR_MS = 3_600_000

ALL = "LOSS-17: while the wall clock jumps every payload is written, in the order in which it was offered"
TIMELY = "LOSS-17: rows are flushed by the monotonic clock: none waits on, whatever the wall clock says"
STAMPS = "LOSS-17: timestamp never goes back; observed_at_unix_ms is what the wall clock said"
SAMPLED = "LOSS-17: sampled mode has no row twice and the newest of each stream"


class _Jumping(SystemClock):
    """The real clocks, but that the wall clock jumps by up to an hour at each look."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.said: list[int] = []

    def unix_ms(self) -> int:
        """Return the time of day, more or less."""
        said = SystemClock.unix_ms() + self._dice.randint(-HOUR_MS, HOUR_MS)
        if threading.current_thread() is threading.main_thread():  # the one that offers
            self.said.append(said)
        return said


def check_clocks(run: Run) -> None:
    """Record while the wall clock jumps at every look."""
    rounds = run.times(1, 15)
    for number in range(rounds):
        for mode in CaptureMode:
            _record(run, number, mode)
    run.facts["recordings with a jumping clock"] = f"{2 * rounds:,}"


def _record(run: Run, number: int, mode: CaptureMode) -> None:
    folder, clock = run.sub(f"clock-{mode.value}{number}"), _Jumping(run.dice)
    chosen = settings(folder, mode=mode, sample_interval_seconds=0.1)
    sink = TraceSink(chosen, PRODUCER, clock=clock)
    sink.start()
    clock.said.clear()
    for n in range(200):
        sink.offer(SOURCE, payload(n))
        if n % 50 == 0:
            time.sleep(0.02)
    began = time.monotonic()
    while sink.counts().pending and time.monotonic() < began + run.patience_seconds:
        time.sleep(0.005)
    seconds = time.monotonic() - began
    run.note(TIMELY, seconds < run.patience_seconds, f"{seconds:.1f} s")
    sink.close(30.0)
    records = list(TraceReader(sorted(folder.glob("*.jsonl.gz"))))
    counters = [record.metrics.counter_id for record in records]
    if mode is CaptureMode.FULL:
        run.note(ALL, counters == list(range(200)), counters[:5])
        observed = [record.observed_at_unix_ms for record in records]
        run.note(STAMPS, observed == clock.said[:200], observed[:3])
    else:
        run.note(SAMPLED, counters == sorted(set(counters)) and counters[-1:] == [199], counters)
    stamps = [record.timestamp for record in records]
    run.note(STAMPS, stamps == sorted(stamps), stamps[:5])
