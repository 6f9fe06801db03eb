"""Knows how one producer's payloads get from many threads into its trace files.

A :class:`TraceSink` is a pump that drops the oldest, a recorder that chooses and a writer that writes.
Offering never waits for the disk; a slow disk turns into counted drops.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from forwardpass.clock import Clock, SystemClock
from forwardpass.config.settings import TraceSettings
from forwardpass.counters import Counters, DropReason
from forwardpass.pump import Overflow, Pump, StopReport
from forwardpass.quiet import QuietLog
from forwardpass.trace.preflight import prove_writable
from forwardpass.trace.record import TraceSource
from forwardpass.trace.rows import Offered, encode_rows
from forwardpass.trace.sampler import Intake, make_recorder
from forwardpass.trace.segments import SegmentNames
from forwardpass.trace.writer import SegmentFile, SegmentWriter

__all__ = ["TICK_SECONDS", "TraceCounts", "TraceSink"]

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.02
"""How often the queue is looked at. The times in the rows are taken when a payload is offered, so this
costs no precision; at 100,000 payloads a second it lets 2,000 wait, a quarter of the smallest queue.
"""


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
    ) -> None:
        self.sampled_out = 0
        self._settings = settings
        self._names = SegmentNames.of(settings.output_prefix, producer_id)
        self._producer_id = producer_id
        self._counters = counters
        self._clock = clock
        self._create_file = create_file
        self._on_fork = on_fork
        self._log = QuietLog(logger, clock)
        self._evicted_seen = 0
        self._begin()

    def _begin(self) -> None:
        self._started = self._clock.monotonic()
        self._recorder = make_recorder(
            self._settings.mode, self._settings.sample_interval_seconds, self._started
        )
        self.writer = SegmentWriter(
            self._names, self._settings, self._counters, self._clock, create=self._create_file
        )

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
        return min(self._recorder.seconds_to_due(now), self.writer.seconds_to_flush(now))

    def take(self, items: list[Offered]) -> None:
        """Let the recorder choose and the writer batch."""
        self._handle(self._recorder.observe(items), self._clock.monotonic())

    def close(self, deadline: float) -> None:
        """Write what is still held, flush and close. Does not stop half way at ``deadline``."""
        self._report_lag(closing=True)
        self._handle(self._recorder.drain(), self._clock.monotonic())
        self.writer.close()
        lost = self._counters.evicted
        if lost:
            logger.warning("trace of producer %s lost %d payloads to a full queue", self._producer_id, lost)

    def forked(self) -> None:
        """Forget the parent's batch and segment. Its file is open here too, but never used or closed."""
        self.sampled_out = 0
        self._evicted_seen = 0
        self._begin()
        self._on_fork()

    def _handle(self, intake: Intake, now: float) -> None:
        if intake.refused:
            self._refuse(intake)
        if intake.sampled_out:
            self._counters.delivered += intake.sampled_out  # before ``sampled_out``, as readers rely on
            self.sampled_out += intake.sampled_out
        if intake.bodies:
            timestamp_ms = int((now - self._started) * 1000)
            lines = encode_rows(intake.offered, intake.bodies, self._recorder.mode.value, timestamp_ms)
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
    ) -> None:
        self.producer_id = producer_id
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._counters = Counters()
        self._task = _SinkTask(
            settings, producer_id, self._counters, self._clock, create_file, self._fresh_lock
        )
        self._pump: Pump[Offered] = Pump(
            self._task,
            name=f"fpm-trace-{producer_id}",
            capacity=settings.queue_capacity,
            counters=self._counters,
            overflow=Overflow.DROP_OLDEST,
            clock=self._clock,
            tick_seconds=TICK_SECONDS,
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
        items = [(source, observed_at_unix_ms, payload) for payload in payloads]
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
        writer = self._task.writer.counts
        # Read before the stage's own counts, which are raised first: what lies between is pending.
        written, sampled_out = writer.rows, self._task.sampled_out
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
