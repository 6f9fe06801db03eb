"""Knows how one producer's payloads get from many threads into its trace files.

A :class:`TraceSink` is a pump that drops the oldest, a recorder that chooses and a writer that writes.
Offering never waits for the disk; a slow disk turns into counted drops.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Literal

from msgspec import Struct

from forwardpass.clock import Clock, SystemClock
from forwardpass.config.settings import CaptureMode, TraceSettings
from forwardpass.counters import Counters, DropReason
from forwardpass.pump import Overflow, Pump, StopReport
from forwardpass.quiet import QuietLog
from forwardpass.trace.ledger import LedgerEvent, LedgerTotals, Origin
from forwardpass.trace.ledger_book import MAX_EVENTS, LedgerBook
from forwardpass.trace.ledger_file import LedgerFile
from forwardpass.trace.preflight import prove_writable
from forwardpass.trace.record import TraceSource
from forwardpass.trace.rows import Offered, encode_rows
from forwardpass.trace.sampler import Intake, make_recorder
from forwardpass.trace.segment_file import SegmentFile
from forwardpass.trace.segments import SegmentNames
from forwardpass.trace.writer import SegmentWriter

__all__ = ["TraceCounts", "TraceSink"]

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.2
"""How often the queue is looked at in full mode, where it holds fewer than ``WAKE_ITEMS``. The times in rows
are taken when a payload is offered, so this costs no precision, and what waited here is flushed the earlier.
A look costs 0.2 to 0.4 ms of cold code: at 200 payloads a second one every 50 ms took 40 us each.
"""
SAMPLED_TICK_SECONDS = 0.05
"""The same in sampled mode: what is in the queue when an interval ends is not looked at for it any more."""
WAKE_ITEMS = 2048
"""So many wake the thread. The smallest queue holds four times as many."""


class TraceCounts(Struct, frozen=True):
    """What became of a producer's payloads so far.

    At every instant ``offered = written + sampled_out + pending + (everything in dropped)``.
    """

    offered: int
    accepted: int
    """``offered`` without those refused at once (reason ``closed``)."""
    written: int
    """Rows whose gzip member reached the operating system."""
    sampled_out: int
    """Payloads that sampled mode passed over, as it should."""
    pending: int
    """Payloads in the queue, held for the interval's end, or in the batch that is not flushed yet."""
    dropped: dict[str, int]
    """Everything else, by reason: ``queue_full``, ``malformed``, ``disk_error``, ``deadline``, …"""
    segments: int
    """Files created."""
    flushes: int
    """Gzip members written."""
    uncompressed_bytes: int
    compressed_bytes: int
    last_error: str | None
    """What the file system said last, in words."""

    @property
    def dropped_total(self) -> int:
        """All drops together."""
        return sum(self.dropped.values())


class _SinkTask:
    """What the pump's thread does with payloads."""

    def __init__(
        self,
        settings: TraceSettings,
        producer_id: str,
        counters: Counters,
        clock: Clock,
        create_file: Callable[[str], SegmentFile],
        on_fork: Callable[[], None],
        origin: Origin,
    ) -> None:
        self.sampled_out = 0
        self._settings = settings
        self._names = SegmentNames.of(settings.output_prefix, producer_id)
        self._producer_id = producer_id
        self._counters = counters
        self._clock = clock
        self._create_file = create_file
        self._on_fork = on_fork
        self._origin = origin
        self._log = QuietLog(logger, clock)
        self._evicted_seen = 0
        self._happened: deque[LedgerEvent] = deque()
        self._omitted = 0
        self._begin()

    def _begin(self) -> None:
        self._started = self._clock.monotonic()
        self._recorder = make_recorder(
            self._settings.mode, self._settings.sample_interval_seconds, self._started
        )
        self.writer = SegmentWriter(
            self._names,
            self._settings,
            self._counters,
            self._clock,
            create=self._create_file,
            watch=self,
            waited_seconds=_tick_seconds(self._settings),
        )
        self._ledger = LedgerFile(self._names, self._clock, self._create_file)
        self._book = LedgerBook(
            self._producer_id,
            secrets.token_hex(8),
            self._recorder.mode.value,
            self._clock.unix_ms(),
            self._started,
            self._origin,
        )

    def counts(self) -> TraceCounts:
        """Return what became of everything offered so far."""
        writer = self.writer.counts
        # Read before the stage's own counts, which are raised first: what lies between is pending.
        written, sampled_out = writer.rows, self.sampled_out
        stage = self._counters.snapshot()
        return TraceCounts(
            offered=stage.offered,
            accepted=stage.accepted,
            written=written,
            sampled_out=sampled_out,
            pending=stage.pending + stage.delivered - written - sampled_out,
            dropped=stage.dropped,
            segments=writer.segments,
            flushes=writer.flushes,
            uncompressed_bytes=writer.uncompressed_bytes,
            compressed_bytes=writer.compressed_bytes,
            last_error=writer.last_error,
        )

    def note(self, event: LedgerEvent) -> None:
        """Keep ``event`` for the ledger. From any thread; never blocks."""
        if len(self._happened) < MAX_EVENTS:
            self._happened.append(event)
        else:
            self._omitted += 1

    def open(self) -> None:
        """Prove the folder and find the next index. Raises ``TracePathError`` or ``OSError``."""
        prove_writable(self._settings.output_prefix)
        self._begin()
        self.writer.open()

    def tick(self, now: float, queued: int) -> float:
        """Write what an interval's end or a full second makes due."""
        self._report_lag(closing=False)
        self._handle(self._recorder.due(now), now)
        self.writer.flush_if_due(now)
        self._write_ledger_if_due(now)
        return min(self._recorder.seconds_to_due(now), self.writer.seconds_to_flush(now))

    def take(self, items: list[Offered]) -> None:
        """Let the recorder choose and the writer batch."""
        self._handle(self._recorder.observe(items), self._clock.monotonic())

    def close(self, deadline: float) -> None:
        """Write what is still held, flush and close. Does not stop half way at ``deadline``."""
        self._report_lag(closing=True)
        self._handle(self._recorder.drain(), self._clock.monotonic())
        self.writer.close()
        self._write_ledger(closed=True, last=True)
        self._ledger.close()
        lost = self._counters.evicted
        if lost:
            logger.warning("trace of producer %s lost %d payloads to a full queue", self._producer_id, lost)

    def forked(self) -> None:
        """Forget the parent's batch and segment. Its file is open here too, but never used or closed."""
        self.sampled_out = 0
        self._evicted_seen = 0
        self._happened, self._omitted = deque(), 0
        self._begin()
        self._on_fork()

    def settled(self, rows: int, lost: DropReason | None) -> None:
        """Take note of what the writer did."""
        self._book.settled(rows, lost)

    def segment_ends(self, index: int) -> None:
        """Write what is known of a segment beside it while it is the current one."""
        self._write_ledger(last=True)

    def _write_ledger_if_due(self, now: float) -> None:
        if self._happened or self._book.is_due(now, self._counters.snapshot().dropped):
            self._write_ledger()

    def _write_ledger(self, *, closed: bool = False, last: bool = False) -> None:
        if self._happened:
            omitted, self._omitted = self._omitted, 0
            self._book.happened([self._happened.popleft() for _ in range(len(self._happened))], omitted)
        index = self.writer.created
        if index is None:  # there is no trace yet that could be explained
            return
        counts = self.counts()
        totals = LedgerTotals(
            counts.offered, counts.written, counts.sampled_out, counts.pending, counts.dropped
        )
        line = self._book.line(self._clock.unix_ms(), totals, closed=closed)
        if self._ledger.append(index, line, last=last):
            self._book.written(line, self._clock.monotonic())

    def _handle(self, intake: Intake, now: float) -> None:
        if intake.refused:
            self._refuse(intake)
        if intake.sampled_out:
            self._counters.delivered += intake.sampled_out  # before ``sampled_out``, as readers rely on
            self.sampled_out += intake.sampled_out
        if intake.bodies:
            timestamp_ms = int((now - self._started) * 1000)
            lines = encode_rows(intake.offered, intake.bodies, self._recorder.mode.value, timestamp_ms)
            self._book.appended(intake.offered, intake.bodies, intake.arrived)
            self.writer.append(lines, len(intake.bodies))

    def _refuse(self, intake: Intake) -> None:
        self._counters.lose(DropReason.MALFORMED, len(intake.refused))
        for error in intake.refused:
            kind = ("malformed", type(error).__name__)
            self._log.warning(kind, f"trace of producer {self._producer_id} refuses a payload: {error}")

    def _report_lag(self, *, closing: bool) -> None:
        evicted = self._counters.evicted
        if evicted == self._evicted_seen:
            return
        lost, self._evicted_seen = evicted - self._evicted_seen, evicted
        when = " during shutdown" if closing else ""
        self._log.warning(
            "lag",
            f"trace of producer {self._producer_id} lags behind{when}: "
            f"{lost} payloads lost to a full queue, {evicted} since the start",
        )


def _tick_seconds(settings: TraceSettings) -> float:
    return SAMPLED_TICK_SECONDS if settings.mode is CaptureMode.SAMPLED else TICK_SECONDS


class TraceSink:
    """The trace of one producer, shared by all its endpoints.

    ``offer`` may be called from several threads. It takes a lock for less than a microsecond, so it is
    not for an engine's own thread.
    """

    def __init__(
        self,
        settings: TraceSettings,
        producer_id: str,
        *,
        clock: Clock | None = None,
        create_file: Callable[[str], SegmentFile] = SegmentFile,
        origin: Origin = Origin(),  # noqa: B008  an immutable value
    ) -> None:
        self.producer_id = producer_id
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._counters = Counters()
        self._task = _SinkTask(
            settings, producer_id, self._counters, self._clock, create_file, self._fresh_lock, origin
        )
        self._pump: Pump[Offered] = Pump(
            self._task,
            name=f"fpm-trace-{producer_id}",
            capacity=settings.queue_capacity,
            counters=self._counters,
            overflow=Overflow.DROP_OLDEST,
            clock=self._clock,
            tick_seconds=_tick_seconds(settings),
            wake_items=WAKE_ITEMS,
        )
        self._accepting = True
        self._fresh_lock()

    def _fresh_lock(self) -> None:
        # Reentrant: a signal handler may close the sink while its thread is in ``offer``. New in a forked
        # child, where the thread that held it does not exist.
        self._lock = threading.RLock()

    @property
    def drain_seconds(self) -> float:
        """Longest time that a close takes by default."""
        return self._settings.drain_seconds

    def start(self) -> None:
        """Prove that the trace can be written and begin.

        Raises :class:`~forwardpass.errors.TracePathError`, ``OSError`` or ``RuntimeError``.
        """
        self._pump.start()

    def offer(self, source: TraceSource, payload: bytes, observed_at_unix_ms: int | None = None) -> bool:
        """Queue a payload; return False, counted as ``closed``, once the sink has stopped accepting.

        Never raises and never waits for the disk. When the queue is full the oldest payload goes.
        """
        if observed_at_unix_ms is None:
            observed_at_unix_ms = self._clock.unix_ms()
        with self._lock:
            if self._accepting:
                return self._pump.offer((source, observed_at_unix_ms, payload))
        return self.refuse(1)

    def offer_many(
        self, source: TraceSource, payloads: Sequence[bytes], observed_at_unix_ms: int | None = None
    ) -> int:
        """As :meth:`offer`, for payloads that were observed together; return how many were accepted."""
        if observed_at_unix_ms is None:
            observed_at_unix_ms = self._clock.unix_ms()
        items = list(zip(repeat(source), repeat(observed_at_unix_ms), payloads, strict=False))
        with self._lock:
            if self._accepting:
                return self._pump.offer_many(items)
        self.refuse(len(items))
        return 0

    def refuse(self, count: int) -> Literal[False]:
        """Count payloads that came too late."""
        with self._lock:
            self._counters.offered += count
            self._counters.refuse(DropReason.CLOSED, count)
        return False

    def room(self) -> int:
        """Return how many payloads can be offered now without an older one being dropped for them."""
        return max(0, self._settings.queue_capacity - self._pump.queued)

    def counts(self) -> TraceCounts:
        """Return what became of everything offered so far."""
        return self._task.counts()

    def note(self, event: LedgerEvent) -> None:
        """Keep ``event`` for the ledger. From any thread; never blocks."""
        self._task.note(event)

    def files(self) -> tuple[str, ...]:
        """Return the segments written so far that retention left in place, oldest first."""
        return self._task.writer.paths

    def close(self, timeout: float | None = None) -> StopReport:
        """Stop accepting, drain, flush and close, within ``timeout`` (default: the settings' drain time).

        Idempotent; may come from any thread, a signal handler or the interpreter's exit.
        """
        seconds = self.drain_seconds if timeout is None else timeout
        with self._lock:  # an offer in flight is in the queue before the queue is drained
            self._accepting = False
        return self._pump.stop(seconds)
