"""Knows what SIGKILL may cost (LOSS-02, LOSS-03): recorders are killed at random moments of their work."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from forwardpass.trace.report import ProblemKind
from torture.recorder import Recorder
from torture.rows import Found, payload, read
from torture.run import Run

__all__ = ["check_kills"]

BOUND_SECONDS = 1.05
"""What LOSS-02 promises: a flush interval and a tick. Written out, so that a change of the product shows."""
AT_ONCE = 8
LIFE_SECONDS = (0.05, 2.6)
ROWS_PER_SECOND = (150, 9_000)
RANKS = 2
MOST_ROWS = 24_000
"""Of one stream in one life."""
GRAIN_SECONDS = 0.01

NO_CORE = "LOSS-02: no payload is lost that was offered more than 1.05 s before SIGKILL"
PREFIX = "LOSS-02: after SIGKILL the rows of each stream are the first that were offered, in order"
SAME = "LOSS-02: after SIGKILL each row is the payload that was offered"
TORN_END = "LOSS-03: after SIGKILL nothing is wrong with the files but the torn end of one of them"


class _Life:
    """One recorder, from its first row to its kill."""

    def __init__(self, run: Run, folder: Path) -> None:
        low, high = ROWS_PER_SECOND
        self.rate = low * (high / low) ** run.dice.random()
        self.recorder = Recorder(
            folder, roll_bytes=run.dice.choice((200_000, 2_000_000, 268_435_456)), max_segments=1000
        )
        self.began = time.monotonic()
        self.ends = self.began + run.dice.uniform(*LIFE_SECONDS)
        self.waits: list[tuple[float, float]] = [(self.began, 0.0)]

    def feed(self, now: float) -> None:
        """Send what is due by now, each stream its share."""
        self.waits.append((now, self.recorder.waited_for_a_core()))
        due = min(MOST_ROWS, int((now - self.began) * self.rate / RANKS))
        for rank in range(RANKS):
            first = self.recorder.next.get(rank, 0)
            if first < due:
                self.recorder.feed(rank, [payload(n, rank) for n in range(first, min(due, first + 400))])

    def waited_since(self, moment: float) -> float:
        """Return how long the sink's thread waited for a core from the last look before ``moment`` on."""
        before = [waited for at, waited in self.waits if at <= moment]
        return self.waits[-1][1] - (before[-1] if before else 0.0)


def check_kills(run: Run) -> None:
    """Kill recorders at random moments of their work and read what they leave."""
    kills = run.times(16, 1000)
    base = Path(tempfile.mkdtemp(prefix="torture-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    seen: Counter[str] = Counter()
    worst = {"with": 0.0, "less": 0.0}
    lives: list[_Life] = []
    started = 0
    try:
        while started < kills or lives:
            while started < kills and len(lives) < AT_ONCE:
                folder = base / str(started)
                folder.mkdir()
                lives.append(_Life(run, folder))
                started += 1
            now = time.monotonic()
            for life in lives:
                life.feed(now)
            for life in [life for life in lives if life.ends <= now]:
                lives.remove(life)
                _end(run, life, seen, worst)
            time.sleep(GRAIN_SECONDS)
    finally:
        for life in lives:
            life.recorder.end(signal.SIGKILL)
        shutil.rmtree(base, ignore_errors=True)
    run.facts["SIGKILLs"] = f"{kills:,}"
    run.facts["payloads offered before them"] = f"{seen['offered']:,}"
    run.facts["rows read after them"] = f"{seen['rows']:,}"
    run.facts["oldest payload that a kill lost"] = f"{worst['with']:.3f} s"
    run.facts["the same less the time its thread waited for a core"] = f"{worst['less']:.3f} s"
    run.facts["kills for which that difference mattered"] = f"{seen['starved']:,}"
    run.facts["kills that lost nothing"] = f"{seen['lossless']:,}"
    run.facts["kills that left a torn end"] = f"{seen['torn']:,}"


def _end(run: Run, life: _Life, seen: Counter[str], worst: dict[str, float]) -> None:
    recorder = life.recorder
    life.waits.append((time.monotonic(), recorder.waited_for_a_core()))
    killed = recorder.end(signal.SIGKILL)
    found = read(recorder.folder)
    _check_rows(run, recorder, found)
    seen["rows"] += found.rows
    seen["offered"] += sum(recorder.offered_by(killed).values())
    seen["torn"] += not found.report.intact
    oldest = 0.0
    for rank in recorder.next:
        first_lost = recorder.offered_at(rank, len(found.counters.get(rank, [])))
        if first_lost is not None and first_lost < killed:
            oldest = max(oldest, killed - first_lost)
    waited = life.waited_since(killed - oldest)
    worst["with"] = max(worst["with"], oldest)
    worst["less"] = max(worst["less"], oldest - waited)
    seen["lossless"] += not oldest
    seen["starved"] += oldest > BOUND_SECONDS
    run.note(
        NO_CORE,
        oldest - waited <= BOUND_SECONDS,
        f"{oldest:.3f} s, of which its thread waited {waited:.3f} s for a core",
    )
    shutil.rmtree(recorder.folder)


def _check_rows(run: Run, recorder: Recorder, found: Found) -> None:
    for rank, counters in found.counters.items():
        prefix = counters == list(range(len(counters))) and len(counters) <= recorder.next.get(rank, 0)
        run.note(PREFIX, prefix, f"rank {rank}: {len(counters)} rows")
    run.note(SAME, not found.wrong, found.wrong[:3])
    damaged = [report for report in found.report.files if not report.intact]
    ends = all(
        report.problem_counts == {ProblemKind.TORN_MEMBER: 1} and report.ranges[-1].damage
        for report in damaged
    )
    run.note(TORN_END, len(damaged) <= 1 and ends, [report.problems for report in damaged])
