"""Knows that a slow or failing producer, plane or consumer delays no other (LOSS-13).

Nothing here is timed: what hangs hangs until the others are done.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import threading
import time
from collections.abc import Callable, Iterator

from forwardpass.clock import SystemClock
from forwardpass.errors import PlaneError
from forwardpass.relay.outbox import Outbox
from forwardpass.relay.relay import Relay
from forwardpass.relay.targets import RelayTarget
from forwardpass.trace.ledger import LedgerEvent
from forwardpass.trace.record import TraceSource
from forwardpass.trace.registry import TraceHandle, TraceRegistry
from forwardpass.trace.segment_file import SegmentFile
from forwardpass.trace.sink import TraceSink
from forwardpass.wire.frames import Frames
from forwardpass.wire.keys import Endpoint
from torture.rows import PRODUCER, SOURCE, adds_up, counters_in, payload, read, settings
from torture.run import Run

__all__ = ["check_apart"]

LIMIT_SECONDS = 15.0

DISK = "LOSS-13: while one producer's disk hangs or fails, another's rows are written and its stop ends"
OFFER = "LOSS-13: offering to a producer whose disk hangs does not wait"
PLANE = "LOSS-13: while the event plane hangs or fails, the trace gets every payload"
TRACE = "LOSS-13: while the trace's disk hangs, the event plane gets every payload"
READER = "LOSS-13: a reader that holds and locks every file delays neither writing nor retention"


class _Gate:
    """A disk on which every write waits until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()

    def file(self, path: str) -> SegmentFile:
        """Create a segment, late."""
        self.reached.set()
        self.open.wait(4 * LIMIT_SECONDS)
        return SegmentFile(path)


def _failing(path: str) -> SegmentFile:
    raise OSError(errno.EIO, "no disk", path)


def check_apart(run: Run) -> None:
    """Let one part hang or fail, and see every other go on."""
    logging.disable(logging.CRITICAL)
    try:
        for number in range(run.times(1, 10)):
            _disks(run, number)
            asyncio.run(_planes(run, number))
            _reader(run, number)
    finally:
        logging.disable(logging.NOTSET)


def _disks(run: Run, number: int) -> None:
    gate, folder = _Gate(), run.sub(f"disks{number}")
    hung = TraceSink(settings(folder, queue_capacity=8192), "1", create_file=gate.file)
    failing = TraceSink(settings(folder), "2", create_file=_failing)
    well = TraceSink(settings(folder), PRODUCER)
    for sink in (hung, failing, well):
        sink.start()
    try:
        hung.offer(TraceSource("n", "c", "1"), payload(0))
        gate.reached.wait(run.patience_seconds)
        offering = threading.Thread(target=lambda: [hung.offer(SOURCE, payload(n)) for n in range(20_000)])
        offering.start()
        failing.offer_many(SOURCE, [payload(n) for n in range(1000)])
        well.offer_many(SOURCE, [payload(n) for n in range(1000)])
        offering.join(run.patience_seconds)
        run.note(OFFER, not offering.is_alive() and adds_up(hung.counts()), hung.counts())
        done = _wait(run, lambda: well.counts().written == 1000)
        run.note(DISK, done and not hung.counts().written, well.counts())
        well.offer_many(SOURCE, [payload(n) for n in range(1000, 2000)])
        closed = well.close(run.patience_seconds).finished and failing.close(run.patience_seconds).finished
        rows = read(sorted(folder.glob(f"fpm.{PRODUCER}.*"))).counters.get(0, [])
        run.note(DISK, closed and rows == list(range(2000)), f"closed {closed}, {len(rows)} rows")
    finally:
        gate.open.set()
        for sink in (hung, failing, well):
            sink.close(run.patience_seconds)


class _Batch:
    """What a source received at once."""

    def __init__(self, first: int, count: int) -> None:
        self._first = first
        self.payloads = [payload(n) for n in range(first, first + count)]
        self.bad: list[object] = []

    def sequences(self) -> tuple[int, ...]:
        """Return the sequence of each."""
        return tuple(range(self._first, self._first + len(self.payloads)))

    def __iter__(self) -> Iterator[Frames]:
        return (Frames(b"", n, p) for n, p in zip(self.sequences(), self.payloads, strict=True))

    def __len__(self) -> int:
        return len(self.payloads)


class _Source:
    """A stream that always has a hundred messages more."""

    connects, connected, descriptor = 1, True, None

    def __init__(self) -> None:
        self.given = 0

    def receive_many(self, limit: int) -> _Batch:
        """Return the next ones."""
        batch = _Batch(self.given, min(limit, 100))
        self.given += len(batch)
        return batch

    def look(self) -> None:
        """Nothing to look at."""

    reopen = close = look


class _Plane:
    """A publisher that hangs, fails, or works."""

    def __init__(self, how: str) -> None:
        self._how = how
        self.published = 0

    async def publish(self, payload: bytes) -> None:
        """Publish, or not."""
        if self._how == "hangs":
            await asyncio.Event().wait()
        if self._how == "fails":
            raise PlaneError("broken")
        self.published += 1

    async def close(self) -> None:
        """Leave."""


async def _planes(run: Run, number: int) -> None:
    for how in ("hangs", "fails", "works"):
        folder, plane, gate = run.sub(f"plane-{how}{number}"), _Plane(how), _Gate()
        registry = TraceRegistry(settings(folder))
        sink = TraceSink(settings(folder, queue_capacity=8192), "9", create_file=gate.file)
        sink.start()
        handle = sink if how == "works" else registry.acquire(PRODUCER, Endpoint())
        trace = _Offering(handle)
        outbox = Outbox(lambda plane=plane: _opened(plane), label="plane")
        outbox.start()
        relay = Relay(
            RelayTarget("inproc://x", 0),
            _Source(),
            clock=SystemClock(),
            trace=trace,
            outbox=outbox,
        )
        for _ in range(30):
            relay.turn(time.monotonic(), 100)
            await asyncio.sleep(0)
        if how == "works":
            for _ in range(100):
                await asyncio.sleep(0)
            run.note(TRACE, plane.published == 3000, f"{plane.published} of 3000")
            gate.open.set()
            sink.close(LIMIT_SECONDS)
        else:
            sink.close(LIMIT_SECONDS)
            registry.close(LIMIT_SECONDS)
            run.note(PLANE, counters_in(folder) == list(range(3000)), f"{how}: {handle.counts()}")
        await outbox.close(0.0)


class _Offering:
    """A trace as a relay sees it."""

    def __init__(self, trace: TraceSink | TraceHandle) -> None:
        self._trace = trace

    def offer_many(self, payloads: list[bytes], observed: int | None = None) -> int:
        """Offer."""
        if isinstance(self._trace, TraceSink):
            return self._trace.offer_many(SOURCE, payloads, observed)
        return self._trace.offer_many(payloads, observed)

    def note(self, event: LedgerEvent) -> None:
        """Keep an event for the ledger."""
        self._trace.note(event)

    def room(self) -> int:
        """Return the room."""
        return self._trace.room()


async def _opened(plane: _Plane) -> _Plane:
    return plane


def _reader(run: Run, number: int) -> None:
    """Hold every segment open, locked for reading, and never read on."""
    folder = run.sub(f"reader{number}")
    sink = TraceSink(settings(folder, roll_bytes=20_000, max_segments=2), PRODUCER)
    sink.start()
    held = []
    try:
        for start in range(0, 2000, 100):
            sink.offer_many(SOURCE, [payload(n) for n in range(start, start + 100)])
            for path in folder.glob("*.jsonl.gz"):
                file = path.open("rb")
                held.append(file)
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:  # the writer's own lock: a reader that waits for it hurts only itself
                    continue
        closed = sink.close(LIMIT_SECONDS).finished
        counts, left = sink.counts(), len(list(folder.glob("*.jsonl.gz")))
        run.note(READER, closed and counts.written == 2000 and left == 2, f"{counts}, {left} files")
    finally:
        for file in held:
            file.close()


def _wait(run: Run, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + run.patience_seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
