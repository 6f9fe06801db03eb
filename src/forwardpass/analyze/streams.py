"""Knows what one publisher's stream of rows adds up to."""

from __future__ import annotations

from msgspec import Struct

from forwardpass.analyze.derived import busy_fraction
from forwardpass.analyze.gaps import GapTracker, StreamGaps, TraceStream
from forwardpass.analyze.kinds import PassKind, kind_of
from forwardpass.trace.record import TraceRecord

__all__ = ["StreamState", "StreamSummary"]


class StreamSummary(Struct, frozen=True):
    """One rank of one worker, as one writer recorded it."""

    producer_id: str
    worker_id: str
    dp_rank: int
    rows: int
    passes: int
    heartbeats: int
    first_observed_unix_ms: int
    last_observed_unix_ms: int
    elapsed_seconds: float
    """From the start of the first recorded pass to the last row."""
    busy_seconds: float
    """Sum of ``wall_time``; each engine defines that its own way (``wall_times``)."""
    busy_fraction: float | None
    """``busy_seconds`` / ``elapsed_seconds``; ``None`` for a sampled stream or one without length."""
    prefill_tokens: int
    decode_tokens: int
    """One per decoding request and pass: a lower bound under speculative decoding."""
    gaps: StreamGaps
    wall_times: tuple[str, ...] = ()
    """What the times of its passes measure, as in ``timing.py``; more than one if that changed."""


class StreamState:
    """Follows one stream, one row at a time."""

    __slots__ = (
        "_busy",
        "_decode_tokens",
        "_first_ms",
        "_first_wall",
        "_gaps",
        "_heartbeats",
        "_last_ms",
        "_prefill_tokens",
        "_rows",
        "_scopes",
        "stream",
    )

    def __init__(self, stream: TraceStream, first: TraceRecord) -> None:
        self.stream = stream
        self._gaps = GapTracker()
        self._first_ms = self._last_ms = first.observed_at_unix_ms
        self._first_wall = max(0.0, first.metrics.wall_time)
        self._rows = self._heartbeats = self._prefill_tokens = self._decode_tokens = 0
        self._busy = 0.0
        self._scopes: set[str] = set()

    def measured(self, scope: str) -> None:
        """Take note of what the time of a pass measures."""
        self._scopes.add(scope)

    def add(self, record: TraceRecord) -> PassKind:
        """Take the stream's next row and return its kind (``IDLE`` where only the worker's other ranks
        can tell that it is ``DP_DUMMY``).
        """
        metrics = record.metrics
        kind = kind_of(metrics)
        self._gaps.add(record)
        self._rows += 1
        observed = record.observed_at_unix_ms
        if observed > self._last_ms:
            self._last_ms = observed
        elif observed < self._first_ms:
            self._first_ms = observed
        if kind is PassKind.HEARTBEAT:
            self._heartbeats += 1
            return kind
        scheduled = metrics.scheduled_requests
        self._prefill_tokens += scheduled.sum_prefill_tokens
        self._decode_tokens += scheduled.num_decode_requests
        if metrics.wall_time > 0.0:
            self._busy += metrics.wall_time
        return kind

    def result(self) -> StreamSummary:
        """Return what the rows so far add up to."""
        elapsed = (self._last_ms - self._first_ms) / 1000 + self._first_wall
        gaps = self._gaps.result(self.stream)
        return StreamSummary(
            *self.stream,
            rows=self._rows,
            passes=self._rows - self._heartbeats,
            heartbeats=self._heartbeats,
            first_observed_unix_ms=self._first_ms,
            last_observed_unix_ms=self._last_ms,
            elapsed_seconds=elapsed,
            busy_seconds=self._busy,
            busy_fraction=None if gaps.sampled else busy_fraction(self._busy, elapsed),
            prefill_tokens=self._prefill_tokens,
            decode_tokens=self._decode_tokens,
            gaps=gaps,
            wall_times=tuple(sorted(self._scopes)),
        )
