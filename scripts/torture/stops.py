"""Knows what a stop costs: nothing, whatever it interrupts (LOSS-01)."""

from __future__ import annotations

import signal
import threading
import time

from forwardpass.config.settings import CaptureMode
from forwardpass.trace.sink import TraceSink
from torture.recorder import Recorder
from torture.rows import PRODUCER, SOURCE, adds_up, counters_in, payload, read, settings
from torture.run import Run

__all__ = ["check_stops"]

BATCH = 300

ALL = "LOSS-01: every payload that was accepted before SIGTERM is in the files, in order, and no file is torn"
ENDS = "LOSS-01: a process ends by SIGTERM with status 0 and within its time"
NEWEST = "LOSS-01: a sampled trace that is stopped has the newest payload of each stream"
CLOSED = (
    "LOSS-01: a close beside threads that offer leaves nothing pending and every accepted payload written"
)


def check_stops(run: Run) -> None:
    """Stop recorders by a signal, and sinks beside threads that offer."""
    stops = run.times(6, 100)
    for number in range(stops):
        _stop_by_signal(run, number)
    closes = run.times(3, 40)
    for number in range(closes):
        _close_beside_offers(run, number)
    run.facts["recorders stopped by SIGTERM"] = f"{stops:,}"
    run.facts["sinks closed while threads offered"] = f"{closes:,}"


def _stop_by_signal(run: Run, number: int) -> None:
    sampled = number % 3 == 2
    mode = CaptureMode.SAMPLED if sampled else CaptureMode.FULL
    recorder = Recorder(run.sub(f"signal{number}"), mode=mode, max_segments=1000, roll_bytes=500_000)
    batches = run.dice.randint(1, 40)
    for batch in range(batches):
        payloads = [payload(counter) for counter in range(batch * BATCH, (batch + 1) * BATCH)]
        while not recorder.feed(0, payloads):
            time.sleep(0.001)
    recorder.wait_for_offers(run.dice.randint(1, len(recorder.batches)))
    time.sleep(run.dice.random() * 0.02)
    moment = recorder.end(signal.SIGTERM)
    run.note(ENDS, recorder.status == 0, f"status {recorder.status}")
    found, offered = read(recorder.folder), recorder.offered_by(moment).get(0, 0)
    counters = found.counters.get(0, [])
    if sampled:
        run.note(NEWEST, bool(counters) and counters[-1] >= offered - 1, f"{counters[-1:]} of {offered}")
        return
    whole = counters == list(range(len(counters))) and len(counters) >= offered
    run.note(ALL, whole and found.report.intact and not found.wrong, f"{len(counters)} rows of {offered}")


def _close_beside_offers(run: Run, number: int) -> None:
    folder, accepted, stop = run.sub(f"close{number}"), [0, 0, 0], threading.Event()
    sink = TraceSink(settings(folder), PRODUCER)
    sink.start()

    def offer(rank: int) -> None:
        while not stop.is_set() and sink.offer(SOURCE, payload(accepted[rank], rank)):
            accepted[rank] += 1

    threads = [threading.Thread(target=offer, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.02 + run.dice.random() * 0.1)
    report = sink.close(30.0)
    stop.set()
    for thread in threads:
        thread.join(30.0)
    counts = sink.counts()
    written = [counters_in(folder, rank) == list(range(accepted[rank])) for rank in range(3)]
    ok = report.finished and adds_up(counts) and not counts.pending and all(written)
    run.note(CLOSED, ok, f"{report} {counts} {written}")
