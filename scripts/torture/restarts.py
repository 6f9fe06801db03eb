"""Knows that restarts, one after the other or all at once, share no file and lose no row (LOSS-16)."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from forwardpass.trace.registry import TraceRegistry
from forwardpass.trace.sink import TraceSink
from forwardpass.wire.keys import Endpoint
from torture.recorder import in_process
from torture.rows import PRODUCER, SOURCE, payload, read, settings
from torture.run import Run

__all__ = ["check_restarts"]

RESTARTS = 50
ROWS = 20

ONE = "LOSS-16: fifty restarts in a row, in about a second, lose no row and share no file"
MANY = "LOSS-16: fifty recorders of one producer that start at once lose no row and share no file"
FORK = "LOSS-16: after a fork in the middle parent and child each have their own rows, all of them, once"


def check_restarts(run: Run) -> None:
    """Restart recorders, start them at once, and fork them in the middle."""
    rounds = run.times(1, 20)
    seconds = []
    for number in range(rounds):
        seconds.append(_in_a_row(run, run.sub(f"row{number}")))
        _at_once(run, run.sub(f"once{number}"))
        _fork(run, run.sub(f"fork{number}"))
    run.facts["restarts"] = f"{rounds * RESTARTS * 2:,}, fifty in {min(seconds):.2f} s at best"


def _whole(run: Run, rule: str, folder: Path) -> None:
    found = read(folder)
    wanted = {rank: list(range(ROWS)) for rank in range(RESTARTS)}
    files = len(found.report.files)
    run.note(rule, found.counters == wanted and found.report.intact and files == RESTARTS, f"{files} files")


def _in_a_row(run: Run, folder: Path) -> float:
    began = time.monotonic()
    for rank in range(RESTARTS):
        sink = TraceSink(settings(folder, max_segments=1000), PRODUCER)
        sink.start()
        sink.offer_many(SOURCE, [payload(n, rank) for n in range(ROWS)])
        sink.close(30.0)
    seconds = time.monotonic() - began
    _whole(run, ONE, folder)
    return seconds


def _at_once(run: Run, folder: Path) -> None:
    def record(rank: int) -> None:
        sink = TraceSink(settings(folder, max_segments=1000), PRODUCER)
        sink.start()
        sink.offer_many(SOURCE, [payload(n, rank) for n in range(ROWS)])
        sink.close(30.0)

    pids = [in_process(lambda rank=rank: record(rank)) for rank in range(RESTARTS)]
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    run.note(MANY, not any(statuses), statuses)
    _whole(run, MANY, folder)


def _fork(run: Run, folder: Path) -> None:
    """A recorder forks again and again while rows are queued, batched and written."""

    def record() -> None:
        logging.disable(logging.CRITICAL)
        registry = TraceRegistry(settings(folder, max_segments=1000, roll_bytes=10_000))
        handle = registry.acquire(PRODUCER, Endpoint())
        if handle is None:
            raise RuntimeError("off")

        def child(rank: int) -> None:
            for n in range(ROWS):
                handle.offer(payload(n, rank))
            handle.release()

        for rank in range(1, 9):
            for n in range((rank - 1) * 100, rank * 100):
                handle.offer(payload(n))
            time.sleep(0.04 * (rank % 4))  # queued still, in the batch, or written
            pid = in_process(lambda rank=rank: child(rank))
            if os.waitpid(pid, 0)[1]:
                raise RuntimeError("a child failed")
        handle.release()

    status = os.waitpid(in_process(record), 0)[1]
    found = read(folder)
    wanted = {0: list(range(800)), **{rank: list(range(ROWS)) for rank in range(1, 9)}}
    counters = {rank: sorted(counters) for rank, counters in found.counters.items()}
    run.note(
        FORK,
        status == 0 and counters == wanted and found.report.intact,
        {k: len(v) for k, v in counters.items()},
    )
