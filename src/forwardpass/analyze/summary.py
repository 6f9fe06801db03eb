"""Knows how to sum up a trace: passes, step times, tokens, queue, gaps, ranks.

Memory is 8 bytes for each row with a step time, and a few hundred bytes for each rank: 10 million rows
take about 80 MB, and step-time quantiles are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from forwardpass.analyze.gaps import TraceStream
from forwardpass.analyze.kinds import PassKind
from forwardpass.analyze.quantiles import Quantiles
from forwardpass.analyze.streams import StreamState, StreamSummary
from forwardpass.trace.record import TraceRecord

__all__ = ["KindSummary", "ProducerSummary", "QueueSummary", "Summarizer", "Summary", "ratio", "summarize"]


class KindSummary(Struct, frozen=True):
    """The passes of one kind. Times are ``wall_time`` in seconds, ``None`` where no pass has one."""

    kind: PassKind
    passes: int
    untimed: int
    """Passes with ``wall_time`` 0, which count as passes but not in the times."""
    total_seconds: float
    mean_seconds: float | None
    p50_seconds: float | None
    p90_seconds: float | None
    p99_seconds: float | None
    max_seconds: float | None


class QueueSummary(Struct, frozen=True):
    """Waiting requests (new, preempted or waiting for KV) as seen by one rank when its pass was built."""

    mean_requests: float
    """Mean over passes, not over time; heartbeats do not count."""
    max_requests: int
    """Largest in any row, heartbeats included."""
    max_prefill_tokens: int
    """Largest sum of waiting prompts' lengths in any row."""


class ProducerSummary(Struct, frozen=True):
    """What one writer wrote; retention works per producer."""

    producer_id: str
    rows: int
    row_bytes: int
    """Uncompressed, newlines included."""
    ranks: int
    elapsed_seconds: float


class Summary(Struct, frozen=True):
    """A trace in numbers."""

    rows: int
    passes: int
    heartbeats: int
    row_bytes: int
    """Uncompressed, newlines included."""
    first_observed_unix_ms: int | None
    last_observed_unix_ms: int | None
    elapsed_seconds: float
    """From the start of the first recorded pass to the last row, over all ranks."""
    sampled: bool
    """Whether any row was sampled. Then percentiles describe the sample only (a p99 needs every pass),
    sums are those of the sample, and rates and busy fractions are not given.
    """
    kinds: tuple[KindSummary, ...]
    """Kinds that occur, in the order of :class:`PassKind`; heartbeats are no passes."""
    prefill_tokens: int
    """Prompt tokens computed."""
    cached_tokens: int
    """Tokens of prefills whose KV was read instead: prefix hits, transferred KV, earlier chunks."""
    decode_tokens: int
    """One per decoding request and pass: a lower bound under speculative decoding."""
    tokens_per_second: float | None
    """(prefill + decode tokens) / elapsed time, all ranks together."""
    tokens_per_busy_second: float | None
    """(prefill + decode tokens) / sum of ``wall_time``: the rate of one rank while it runs."""
    queue: QueueSummary
    missing: int
    """Counters jumped over between rows of ``full`` mode, all streams. 0 is not "no loss"."""
    gaps: int
    sampled_out: int
    restarts: int
    duplicates: int
    streams: tuple[StreamSummary, ...]
    producers: tuple[ProducerSummary, ...]


class _Steps:
    """The passes of one kind so far."""

    __slots__ = ("passes", "times")

    def __init__(self) -> None:
        self.passes = 0
        self.times = Quantiles()

    def add(self, wall_time: float) -> None:
        self.passes += 1
        if wall_time > 0.0:
            self.times.add(wall_time)

    def extend(self, other: _Steps) -> None:
        self.passes += other.passes
        self.times.extend(other.times)

    def result(self, kind: PassKind) -> KindSummary:
        times = self.times
        return KindSummary(
            kind=kind,
            passes=self.passes,
            untimed=self.passes - times.count,
            total_seconds=times.total,
            mean_seconds=times.total / times.count if times.count else None,
            p50_seconds=times.quantile(0.5),
            p90_seconds=times.quantile(0.9),
            p99_seconds=times.quantile(0.99),
            max_seconds=times.maximum if times.count else None,
        )


class Summarizer:
    """Sums rows up as they come."""

    def __init__(self) -> None:
        self._streams: dict[TraceStream, StreamState] = {}
        self._kinds: dict[PassKind, _Steps] = {}
        self._empty: dict[tuple[str, str], _Steps] = {}  # (producer, worker) -> passes without requests
        self._row_bytes: dict[str, int] = {}
        self._cached = self._queue_sum = self._queue_max = self._queue_tokens_max = 0

    def add(self, record: TraceRecord) -> None:
        """Take the next row, in file order within its stream."""
        metrics = record.metrics
        producer = record.source.producer_id
        stream = TraceStream(producer, metrics.worker_id, metrics.dp_rank)
        state = self._streams.get(stream)
        if state is None:
            state = self._streams[stream] = StreamState(stream, record)
            self._row_bytes.setdefault(producer, 0)
        self._row_bytes[producer] += len(record.line) + 1
        queued = metrics.queued_requests
        waiting = queued.num_prefill_requests + queued.num_decode_requests
        if waiting > self._queue_max:
            self._queue_max = waiting
        if queued.sum_prefill_tokens > self._queue_tokens_max:
            self._queue_tokens_max = queued.sum_prefill_tokens
        kind = state.add(record)
        if kind is not PassKind.HEARTBEAT:
            self._queue_sum += waiting
            self._cached += metrics.scheduled_requests.sum_prefill_kv_tokens
            self._steps_of(kind, stream).add(metrics.wall_time)

    def _steps_of(self, kind: PassKind, stream: TraceStream) -> _Steps:
        if kind is PassKind.IDLE or kind is PassKind.DP_DUMMY:
            return self._empty.setdefault((stream.producer_id, stream.worker_id), _Steps())
        steps = self._kinds.get(kind)
        if steps is None:
            steps = self._kinds[kind] = _Steps()
        return steps

    def result(self) -> Summary:
        """Return what the rows so far add up to."""
        streams = tuple(state.result() for _, state in sorted(self._streams.items()))
        sampled = any(stream.gaps.sampled for stream in streams)
        elapsed = _elapsed(streams)
        passes = sum(stream.passes for stream in streams)
        tokens = sum(stream.prefill_tokens + stream.decode_tokens for stream in streams)
        return Summary(
            rows=sum(stream.rows for stream in streams),
            passes=passes,
            heartbeats=sum(stream.heartbeats for stream in streams),
            row_bytes=sum(self._row_bytes.values()),
            first_observed_unix_ms=min((s.first_observed_unix_ms for s in streams), default=None),
            last_observed_unix_ms=max((s.last_observed_unix_ms for s in streams), default=None),
            elapsed_seconds=elapsed,
            sampled=sampled,
            kinds=self._kind_summaries(streams),
            prefill_tokens=sum(stream.prefill_tokens for stream in streams),
            cached_tokens=self._cached,
            decode_tokens=sum(stream.decode_tokens for stream in streams),
            tokens_per_second=None if sampled else ratio(tokens, elapsed),
            tokens_per_busy_second=ratio(tokens, sum(stream.busy_seconds for stream in streams)),
            queue=QueueSummary(
                ratio(self._queue_sum, passes) or 0.0, self._queue_max, self._queue_tokens_max
            ),
            missing=sum(stream.gaps.missing for stream in streams),
            gaps=sum(stream.gaps.gaps for stream in streams),
            sampled_out=sum(stream.gaps.sampled_out for stream in streams),
            restarts=sum(stream.gaps.restarts for stream in streams),
            duplicates=sum(stream.gaps.duplicates for stream in streams),
            streams=streams,
            producers=self._producer_summaries(streams),
        )

    def _kind_summaries(self, streams: tuple[StreamSummary, ...]) -> tuple[KindSummary, ...]:
        ranks = Counter((stream.producer_id, stream.worker_id) for stream in streams)
        highest = {(s.producer_id, s.worker_id): s.dp_rank for s in sorted(streams, key=lambda s: s.dp_rank)}
        kinds = dict(self._kinds)
        for worker, steps in self._empty.items():
            parallel = ranks[worker] > 1 or highest[worker] > 0
            kind = PassKind.DP_DUMMY if parallel else PassKind.IDLE
            if kind not in kinds:
                kinds[kind] = _Steps()
            kinds[kind].extend(steps)
        return tuple(kinds[kind].result(kind) for kind in PassKind if kind in kinds)

    def _producer_summaries(self, streams: tuple[StreamSummary, ...]) -> tuple[ProducerSummary, ...]:
        found = []
        for producer, row_bytes in sorted(self._row_bytes.items()):
            own = [stream for stream in streams if stream.producer_id == producer]
            rows = sum(stream.rows for stream in own)
            found.append(ProducerSummary(producer, rows, row_bytes, len(own), _elapsed(own)))
        return tuple(found)


def summarize(records: Iterable[TraceRecord]) -> Summary:
    """Return the summary of ``records`` (in file order within each stream)."""
    summarizer = Summarizer()
    for record in records:
        summarizer.add(record)
    return summarizer.result()


def ratio(amount: float, base: float) -> float | None:
    """Return ``amount / base``, or ``None`` where that says nothing (no base, or beyond any float)."""
    try:
        return amount / base if base > 0 else None
    except OverflowError:
        return None


def _elapsed(streams: Sequence[StreamSummary]) -> float:
    if not streams:
        return 0.0
    end_ms = max(stream.last_observed_unix_ms for stream in streams)
    return max((end_ms - s.last_observed_unix_ms) / 1000 + s.elapsed_seconds for s in streams)
