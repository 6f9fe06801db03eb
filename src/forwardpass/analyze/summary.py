"""Knows how to sum up a trace: passes, step times, tokens, queue, gaps, ranks.

Memory is a few hundred bytes for each rank, and at most 32 MiB for the step times of each kind of pass: more
than four million of a kind go to a temporary file, 8 bytes each. Step-time quantiles are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from forwardpass.analyze.derived import queue_depth, ratio
from forwardpass.analyze.gaps import TraceStream
from forwardpass.analyze.kinds import PassKind
from forwardpass.analyze.quantiles import Quantiles
from forwardpass.analyze.streams import StreamState, StreamSummary
from forwardpass.analyze.timing import NOT_SAID, Scopes
from forwardpass.trace.record import TraceRecord

__all__ = ["KindSummary", "ProducerSummary", "QueueSummary", "Summarizer", "Summary", "summarize"]


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
    wall_time: str = NOT_SAID
    """What the times measure, as in ``timing.py``; passes of one kind with times of different meanings are
    several of these."""


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
    """Kinds that occur, in the order of :class:`PassKind`, once for each meaning that their times have;
    heartbeats are no passes."""
    prefill_tokens: int
    """Prompt tokens computed."""
    cached_tokens: int
    """Tokens of prefills whose KV was read instead: prefix hits, transferred KV, earlier chunks."""
    decode_tokens: int
    """One per decoding request and pass: a lower bound under speculative decoding."""
    tokens_per_second: float | None
    """(prefill + decode tokens) / elapsed time, all ranks together."""
    tokens_per_busy_second: float | None
    """(prefill + decode tokens) / sum of ``wall_time``: the rate of one rank while it runs. ``None`` where
    the times have different meanings."""
    queue: QueueSummary
    missing: int
    """Counters jumped over between rows of ``full`` mode, all streams. 0 is not "no loss"."""
    gaps: int
    sampled_out: int
    restarts: int
    turns: int
    duplicates: int
    streams: tuple[StreamSummary, ...]
    producers: tuple[ProducerSummary, ...]
    wall_times: tuple[str, ...] = ()
    """What the passes' times measure: usually one meaning, or ``NOT_SAID``; sorted."""


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

    def result(self, kind: PassKind, wall_time: str) -> KindSummary:
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
            wall_time=wall_time,
        )


class Summarizer:
    """Sums rows up as they come. ``scopes`` tells what their times measure; different meanings stay apart."""

    def __init__(self, scopes: Scopes | None = None) -> None:
        self._scopes = scopes or Scopes()
        self._streams: dict[TraceStream, StreamState] = {}
        self._kinds: dict[tuple[str, PassKind], _Steps] = {}  # by scope and kind
        self._empty: dict[tuple[str, str, str], _Steps] = {}  # (producer, worker, scope) -> without requests
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
        waiting, queued = queue_depth(metrics), metrics.queued_requests
        if waiting > self._queue_max:
            self._queue_max = waiting
        if queued.sum_prefill_tokens > self._queue_tokens_max:
            self._queue_tokens_max = queued.sum_prefill_tokens
        kind = state.add(record)
        if kind is not PassKind.HEARTBEAT:
            self._queue_sum += waiting
            self._cached += metrics.scheduled_requests.sum_prefill_kv_tokens
            scope = self._scopes.of(record)
            state.measured(scope)
            self._steps_of(kind, stream, scope).add(metrics.wall_time)

    def _steps_of(self, kind: PassKind, stream: TraceStream, scope: str) -> _Steps:
        if kind is PassKind.IDLE or kind is PassKind.DP_DUMMY:
            return self._empty.setdefault((stream.producer_id, stream.worker_id, scope), _Steps())
        steps = self._kinds.get((scope, kind))
        if steps is None:
            steps = self._kinds[scope, kind] = _Steps()
        return steps

    def result(self) -> Summary:
        """Return what the rows so far add up to."""
        streams = tuple(state.result() for _, state in sorted(self._streams.items()))
        sampled = any(stream.gaps.sampled for stream in streams)
        elapsed = _elapsed(streams)
        passes = sum(stream.passes for stream in streams)
        tokens = sum(stream.prefill_tokens + stream.decode_tokens for stream in streams)
        wall_times = tuple(sorted({scope for stream in streams for scope in stream.wall_times}))
        busy = sum(stream.busy_seconds for stream in streams) if len(wall_times) < 2 else 0.0
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
            tokens_per_busy_second=ratio(tokens, busy),
            queue=QueueSummary(
                ratio(self._queue_sum, passes) or 0.0, self._queue_max, self._queue_tokens_max
            ),
            missing=sum(stream.gaps.missing for stream in streams),
            gaps=sum(stream.gaps.gaps for stream in streams),
            sampled_out=sum(stream.gaps.sampled_out for stream in streams),
            restarts=sum(stream.gaps.restarts for stream in streams),
            turns=sum(stream.gaps.turns for stream in streams),
            duplicates=sum(stream.gaps.duplicates for stream in streams),
            streams=streams,
            producers=self._producer_summaries(streams),
            wall_times=wall_times,
        )

    def _kind_summaries(self, streams: tuple[StreamSummary, ...]) -> tuple[KindSummary, ...]:
        ranks = Counter((stream.producer_id, stream.worker_id) for stream in streams)
        highest = {(s.producer_id, s.worker_id): s.dp_rank for s in sorted(streams, key=lambda s: s.dp_rank)}
        kinds = dict(self._kinds)
        for (*names, scope), steps in self._empty.items():
            worker = (names[0], names[1])
            parallel = ranks[worker] > 1 or highest[worker] > 0
            kind = PassKind.DP_DUMMY if parallel else PassKind.IDLE
            if (scope, kind) not in kinds:
                kinds[scope, kind] = _Steps()
            kinds[scope, kind].extend(steps)
        order = list(PassKind)
        keys = sorted(kinds, key=lambda key: (key[0], order.index(key[1])))
        return tuple(kinds[scope, kind].result(kind, scope) for scope, kind in keys)

    def _producer_summaries(self, streams: tuple[StreamSummary, ...]) -> tuple[ProducerSummary, ...]:
        of_producer: dict[str, list[StreamSummary]] = {producer: [] for producer in self._row_bytes}
        for stream in streams:
            of_producer[stream.producer_id].append(stream)
        found = []
        for producer, row_bytes in sorted(self._row_bytes.items()):
            own = of_producer[producer]
            rows = sum(stream.rows for stream in own)
            found.append(ProducerSummary(producer, rows, row_bytes, len(own), _elapsed(own)))
        return tuple(found)


def summarize(records: Iterable[TraceRecord], scopes: Scopes | None = None) -> Summary:
    """Return the summary of ``records`` (in file order within each stream).

    ``scopes`` tells what their times measure (:func:`~forwardpass.analyze.timing.scopes_of` reads it from
    the ledgers); without it only what stands in the rows is known.
    """
    summarizer = Summarizer(scopes)
    for record in records:
        summarizer.add(record)
    return summarizer.result()


def _elapsed(streams: Sequence[StreamSummary]) -> float:
    if not streams:
        return 0.0
    end_ms = max(stream.last_observed_unix_ms for stream in streams)
    return max((end_ms - s.last_observed_unix_ms) / 1000 + s.elapsed_seconds for s in streams)
