"""Knows which of the offered payloads are recorded: all of them, or the newest per stream and interval.

Pure: payloads and times in, rows out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from forwardpass.config.settings import CaptureMode
from forwardpass.errors import WireError
from forwardpass.trace.record import TraceSource
from forwardpass.trace.rows import Body, Offered, Reading, read_one, read_payloads
from forwardpass.wire.codec import BYTES_ERRORS
from forwardpass.wire.keys import StreamKey

__all__ = ["FullRecorder", "Intake", "Recorder", "SampledRecorder", "make_recorder", "stream_prefix"]

NEWER_LIMIT = 32
"""Payloads of one stream that may wait unread: it bounds memory, and how often one is read in vain."""
MAX_GROUPS = 8
"""Streams of one batch that are told apart by whole passes over it; more are told apart one by one."""
MAX_PREFIX_LENGTHS = 64
MAX_STREAMS = 4096
"""Streams whose last counter is remembered. Beyond, the silent ones are forgotten; a forgotten stream
that comes back with an unchanged counter is written once more.
"""

_HEAD = b"\x87\xa7version\x01\xa9worker_id"
_RANK = b"\xa7dp_rank"
_COUNTER = b"\xaacounter_id"


class Intake(NamedTuple):
    """What became of payloads: rows to write, in order, and the others by count."""

    offered: Sequence[Offered] = ()
    bodies: Sequence[Body] = ()
    """One for each of ``offered``."""
    sampled_out: int = 0
    """Passed over because a newer one of the same stream, or the same counter, stands for them."""
    refused: Sequence[WireError] = ()
    """One for each payload that the trace may not hold, as far as they were looked at."""
    arrived: Sequence[int] | None = None
    """In sampled mode, one for each of ``bodies``: the payloads that came of its stream since the one before
    it, itself included.
    """


class Recorder(Protocol):
    """Chooses what is written. Each observed payload comes out once, in some :class:`Intake`."""

    mode: CaptureMode

    def observe(self, items: list[Offered]) -> Intake:
        """Take payloads in the order in which they were offered."""
        ...

    def due(self, now: float) -> Intake:
        """Return what is to be written at monotonic ``now``."""
        ...

    def seconds_to_due(self, now: float) -> float:
        """Return how long until :meth:`due` may have something (infinity: never)."""
        ...

    def drain(self) -> Intake:
        """Return everything that is still held."""
        ...


def make_recorder(mode: CaptureMode, interval_seconds: float, now: float) -> Recorder:
    """Return the recorder for ``mode``, started at monotonic ``now``."""
    return SampledRecorder(interval_seconds, now) if mode is CaptureMode.SAMPLED else FullRecorder()


_NOTHING = Intake()


class FullRecorder:
    """Every payload, in arrival order, heartbeats included."""

    mode = CaptureMode.FULL

    def observe(self, items: list[Offered]) -> Intake:
        """Return a row for every payload that the trace may hold."""
        results = read_payloads([payload for _, _, payload in items])
        refused = [result for result in results if isinstance(result, WireError)]
        if not refused:
            return Intake(items, results)  # type: ignore[arg-type]  # none of them is an error
        offered: list[Offered] = []
        bodies: list[Body] = []
        for item, result in zip(items, results, strict=True):
            if not isinstance(result, WireError):
                offered.append(item)
                bodies.append(result)
        return Intake(offered, bodies, 0, refused)

    def due(self, now: float) -> Intake:
        """Nothing waits for a time."""
        return _NOTHING

    def seconds_to_due(self, now: float) -> float:
        """Never."""
        return float("inf")

    def drain(self) -> Intake:
        """Nothing is held."""
        return _NOTHING


class _Pending(NamedTuple):
    item: Offered
    reading: Reading


class _Stream:
    """One key: what an interval's end would write, and what came after it and was not read yet."""

    __slots__ = ("arrived", "key", "last_emitted", "newer", "pending")

    def __init__(self, key: tuple[str, str, str, str, int]) -> None:
        self.arrived = 0
        self.key = key
        self.last_emitted: int | None = None
        self.pending: _Pending | None = None
        self.newer: list[Offered] = []


class SampledRecorder:
    """The newest payload of each stream, once per interval, never twice with the same counter.

    The rules (a stream is a source, worker and rank): a valid payload whose counter is the one last
    written is ignored; any other replaces what is pending; at the interval's end everything pending is
    written, in ascending order of the streams. A late end delays the following ones.

    Reading every payload would cost 50 times what keeping it does. Payloads of the usual layout tell
    their stream by their first bytes, so they are only kept (the newest few per stream) and read from the
    newest backwards when it matters. What is written is what the rules say; what differs is that a bad
    payload which a newer one replaced is not noticed to be bad.
    """

    mode = CaptureMode.SAMPLED

    def __init__(self, interval_seconds: float, now: float) -> None:
        self._interval_seconds = interval_seconds
        self._next_end = now + interval_seconds
        self._streams: dict[tuple[str, str, str, str, int], _Stream] = {}
        self._by_prefix: dict[tuple[TraceSource, bytes], _Stream] = {}
        self._prefix_lengths: dict[int, None] = {}
        self._sampled_out = 0
        self._refused: list[WireError] = []

    def observe(self, items: list[Offered]) -> Intake:
        """Keep what may be written at the interval's end."""
        groups = self._group(items)
        if groups is None:
            self._observe_in_order(items)
        else:
            for stream, group in groups:
                self._keep(stream, group)
        return self._outcome([], [], [])

    def due(self, now: float) -> Intake:
        """Return what is pending if the interval has ended."""
        if now < self._next_end:
            return _NOTHING
        self._next_end = now + self._interval_seconds
        return self.drain()

    def seconds_to_due(self, now: float) -> float:
        """Return the seconds until the interval ends."""
        return max(0.0, self._next_end - now)

    def drain(self) -> Intake:
        """Return everything pending, in ascending order of the streams."""
        emitted: list[tuple[_Stream, _Pending]] = []
        for stream in self._streams.values():
            self._settle(stream)
            if stream.pending is not None:
                emitted.append((stream, stream.pending))
        emitted.sort(key=lambda pair: pair[0].key)
        arrived = []
        for stream, pending in emitted:
            stream.last_emitted = pending.reading.counter_id
            stream.pending = None
            arrived.append(stream.arrived)
            stream.arrived = 0
        if len(self._streams) > MAX_STREAMS:
            self._forget_all_but([stream for stream, _ in emitted])
        return self._outcome(
            [pending.item for _, pending in emitted],
            [pending.reading.body for _, pending in emitted],
            arrived,
        )

    # --- which stream ----------------------------------------------------------------------------

    def _group(self, items: list[Offered]) -> list[tuple[_Stream, list[Offered]]] | None:
        """Return the items by stream, or ``None`` if they have to be looked at one by one.

        That is so where a payload must be read to know its stream, where one stream begins in two ways
        (the order between them would be lost), and where there are many streams.
        """
        groups: list[tuple[_Stream, list[Offered]]] = []
        while items:
            source, _, newest = items[-1]
            found = self._by_first_bytes(source, newest)
            if found is None or len(groups) == MAX_GROUPS:
                return None
            stream, prefix = found
            if any(stream is other for other, _ in groups):
                return None
            rest = [item for item in items if item[0] is not source or not item[2].startswith(prefix)]
            if rest:
                items = [item for item in items if item[0] is source and item[2].startswith(prefix)]
            groups.append((stream, items))
            items = rest
        return groups

    def _observe_in_order(self, items: list[Offered]) -> None:
        for item in items:
            source, _, payload = item
            found = self._by_first_bytes(source, payload)
            if found is not None:
                self._keep(found[0], [item])
                continue
            try:
                reading = read_one(payload)
            except WireError as error:
                self._refused.append(error)
                continue
            stream = self._stream(source, reading.key)
            stream.arrived += 1
            self._offer_pending(stream, item, reading)

    def _by_first_bytes(self, source: TraceSource, payload: bytes) -> tuple[_Stream, bytes] | None:
        for length in self._prefix_lengths:
            prefix = payload[:length]
            stream = self._by_prefix.get((source, prefix))
            if stream is not None:
                return stream, prefix
        return self._learn(source, payload)

    def _learn(self, source: TraceSource, payload: bytes) -> tuple[_Stream, bytes] | None:
        found = stream_prefix(payload)
        if found is None:
            return None
        prefix, key = found
        if len(self._by_prefix) >= MAX_STREAMS or len(self._prefix_lengths) >= MAX_PREFIX_LENGTHS:
            self._forget_prefixes()
        stream = self._stream(source, key)
        self._by_prefix[source, prefix] = stream
        self._prefix_lengths[len(prefix)] = None
        return stream, prefix

    def _stream(self, source: TraceSource, key: StreamKey) -> _Stream:
        full_key = (source.namespace, source.component, source.producer_id, *key)
        stream = self._streams.get(full_key)
        if stream is None:
            stream = self._streams[full_key] = _Stream(full_key)
        return stream

    def _forget_all_but(self, streams: list[_Stream]) -> None:
        self._streams = {stream.key: stream for stream in streams}
        self._forget_prefixes()

    def _forget_prefixes(self) -> None:
        self._by_prefix.clear()
        self._prefix_lengths.clear()

    # --- what is pending -------------------------------------------------------------------------

    def _keep(self, stream: _Stream, group: list[Offered]) -> None:
        stream.arrived += len(group)
        stream.newer = stream.newer + group if stream.newer else group
        if len(stream.newer) > NEWER_LIMIT:
            self._settle(stream)

    def _settle(self, stream: _Stream) -> None:
        """Read from the newest backwards until one is found that would be written."""
        newer, stream.newer = stream.newer, []
        for index in range(len(newer) - 1, -1, -1):
            try:
                reading = read_one(newer[index][2])
            except WireError as error:
                self._refused.append(error)
                continue
            if self._offer_pending(stream, newer[index], reading):
                self._sampled_out += index
                return

    def _offer_pending(self, stream: _Stream, item: Offered, reading: Reading) -> bool:
        """Apply the rule for one valid payload newer than everything that was looked at."""
        if reading.counter_id == stream.last_emitted:
            self._sampled_out += 1
            return False
        self._sampled_out += len(stream.newer) + (stream.pending is not None)
        stream.newer = []
        stream.pending = _Pending(item, reading)
        return True

    def _outcome(self, offered: list[Offered], bodies: list[Body], arrived: list[int]) -> Intake:
        intake = Intake(offered, bodies, self._sampled_out, self._refused, arrived)
        self._sampled_out, self._refused = 0, []
        return intake


def stream_prefix(payload: bytes) -> tuple[bytes, StreamKey] | None:
    """Return the first bytes that every payload of this stream has, and the stream they stand for.

    ``None`` unless the payload is laid out as usual: a map of exactly seven entries that begins with
    ``version`` 1, ``worker_id``, ``dp_rank`` and the key ``counter_id``. A valid payload of seven entries
    has no key twice, since seven are required, so whatever follows cannot change whose it is.
    """
    if not payload.startswith(_HEAD):
        return None
    rank_at = payload.find(_RANK, len(_HEAD))
    counter_at = payload.find(_COUNTER, rank_at)
    if rank_at < 0 or counter_at < 0:
        return None
    try:
        worker_id = msgspec.msgpack.decode(payload[len(_HEAD) : rank_at], type=str)
        dp_rank = msgspec.msgpack.decode(payload[rank_at + len(_RANK) : counter_at], type=int)
    except BYTES_ERRORS:
        return None
    return payload[: counter_at + len(_COUNTER)], StreamKey(worker_id, dp_rank)
