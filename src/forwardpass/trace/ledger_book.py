"""Knows how a recorder keeps account of each stream: what came, what was written, what was lost and why.

Pure: rows and their fates in, lines of the ledger out. Rows are taken in as lists and looked at when their
fate is known, because the writer loses or writes whole batches. One thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter, is_, itemgetter
from typing import Any, NamedTuple

from forwardpass.counters import DropReason
from forwardpass.trace.ledger import (
    MAX_RANGES,
    LedgerEvent,
    LedgerLine,
    LedgerTotals,
    LostRange,
    Origin,
    StreamWindow,
    ledger_name,
)
from forwardpass.trace.record import TraceSource
from forwardpass.trace.rows import Body, Offered
from forwardpass.wire.keys import StreamKey

__all__ = ["CALM_SECONDS", "MAX_EVENTS", "MAX_STREAMS", "LedgerBook"]

CALM_SECONDS = 30.0
"""How much time a line covers where nothing was lost: an all-clear is not urgent, and rows prove it too."""
MAX_EVENTS = 256
"""Events in one line."""
MAX_STREAMS = 4096
"""Streams whose last counter is remembered."""

_key_of: Callable[[Any], StreamKey] = attrgetter("worker_id", "dp_rank")  # type: ignore[assignment]
_counter_of = attrgetter("counter_id")
_source_of = itemgetter(0)


class _Group(NamedTuple):
    """Rows that were handed to the writer together."""

    offered: Sequence[Offered]
    bodies: Sequence[Body]
    arrived: Sequence[int] | None
    """In sampled mode: the messages of its stream that each row stands for, itself included."""


class _Stream:
    """One stream over the recorder's life."""

    __slots__ = ("last", "window")

    def __init__(self) -> None:
        self.last: int | None = None
        self.window: StreamWindow | None = None


class LedgerBook:
    """The account of one recorder's life."""

    def __init__(
        self,
        producer_id: str,
        run: str,
        capture_mode: str,
        unix_ms: int,
        now: float,
        origin: Origin = Origin(),  # noqa: B008  an immutable value
    ) -> None:
        """Begin at ``unix_ms`` and monotonic ``now``."""
        self._origin = origin
        self._producer_id, self._run, self._capture_mode = producer_id, run, capture_mode
        self._from_unix_ms, self._from = unix_ms, now
        self._unsettled: deque[_Group] = deque()
        self._taken = 0  # rows of the first group that are settled already
        self._streams: dict[tuple[TraceSource, str, int], _Stream] = {}
        self._touched: list[_Stream] = []
        self._events: list[LedgerEvent] = []
        self._omitted = 0
        self._dropped_before: dict[str, int] = {}
        self._notable = False
        self._silent = True

    # --- what happens ----------------------------------------------------------------------------

    def appended(
        self, offered: Sequence[Offered], bodies: Sequence[Body], arrived: Sequence[int] | None = None
    ) -> None:
        """Take rows that go to the writer now, in this order; ``settled`` will say what became of them."""
        self._unsettled.append(_Group(offered, bodies, arrived))

    def settled(self, rows: int, lost: DropReason | None) -> None:
        """Take note that the writer is done with its oldest ``rows``: written, or ``lost``."""
        self._notable = self._notable or lost is not None
        while rows and self._unsettled:
            group = self._unsettled[0]
            begin = self._taken
            end = min(len(group.bodies), begin + rows)
            self._settle(group, begin, end, lost)
            rows -= end - begin
            self._taken = end
            if end == len(group.bodies):
                self._unsettled.popleft()
                self._taken = 0

    def happened(self, events: Iterable[LedgerEvent], omitted: int) -> None:
        """Take what the relays saw; ``omitted`` more had no room on the way here."""
        for event in events:
            self._notable = True
            if len(self._events) < MAX_EVENTS:
                self._events.append(event)
            else:
                omitted += 1
        self._omitted += omitted

    # --- lines -----------------------------------------------------------------------------------

    def is_due(self, now: float, dropped: dict[str, int]) -> bool:
        """Say whether a line should be written: with the first rows, so that there is a sign of life, at once
        after a loss or an event or from very many streams, and else now and then.
        """
        if self._notable or len(self._touched) > MAX_STREAMS or dropped != self._dropped_before:
            return True
        return bool(self._touched) and (self._silent or now - self._from >= CALM_SECONDS)

    def line(self, unix_ms: int, totals: LedgerTotals, *, closed: bool = False) -> LedgerLine:
        """Return what happened since the last line that was :meth:`written`."""
        before = self._dropped_before
        dropped = {
            reason: count - before.get(reason, 0)
            for reason, count in totals.dropped.items()
            if count != before.get(reason, 0)
        }
        return LedgerLine(
            producer_id=self._producer_id,
            engine=self._origin.engine,
            wall_time=self._origin.wall_time,
            run=self._run,
            capture_mode=self._capture_mode,
            from_unix_ms=self._from_unix_ms,
            to_unix_ms=unix_ms,
            totals=totals,
            closed=closed,
            dropped=dropped,
            streams=[stream.window for stream in self._touched if stream.window is not None],
            events=list(self._events),
            events_omitted=self._omitted,
        )

    def written(self, line: LedgerLine, now: float) -> None:
        """Begin the next line; without this the next one repeats what ``line`` said, and more."""
        for stream in self._touched:
            stream.window = None
        if len(self._streams) > MAX_STREAMS:
            kept = {id(stream) for stream in self._touched}
            self._streams = {key: stream for key, stream in self._streams.items() if id(stream) in kept}
        self._touched, self._events, self._omitted = [], [], 0
        self._dropped_before = dict(line.totals.dropped)
        self._from_unix_ms, self._from, self._notable = line.to_unix_ms, now, False
        self._silent = False

    # --- one group -------------------------------------------------------------------------------

    def _settle(self, group: _Group, begin: int, end: int, lost: DropReason | None) -> None:
        bodies, offered = group.bodies[begin:end], group.offered[begin:end]
        if group.arrived is None and _is_one_run(offered, bodies):  # the usual case, many at once
            (key, _), (first, last) = _identities((bodies[0], bodies[-1]))
            self._note(offered[0][0], key, first, last, lost, None)
            return
        keys, counters = _identities(bodies)
        arrived = group.arrived[begin:end] if group.arrived is not None else [None] * len(counters)
        for item, key, counter, came in zip(offered, keys, counters, arrived, strict=True):
            self._note(item[0], key, counter, counter, lost, came)

    def _note(
        self,
        source: TraceSource,
        key: StreamKey,
        first: int,
        last: int,
        lost: DropReason | None,
        arrived: int | None,
    ) -> None:
        stream, window = self._window(source, key, first)
        if stream.last is not None:
            self._step(window, first - stream.last, arrived)
        stream.last = window.last = last
        count = last - first + 1
        if arrived is not None:
            window.sampled_out += arrived - 1
        if lost is None:
            window.written += count
            return
        window.lost_count += count
        before = window.lost[-1] if window.lost else None
        if before is not None and before.last + 1 == first and before.reason == lost.value:
            window.lost[-1] = LostRange(before.first, last, lost.value)
        elif len(window.lost) < MAX_RANGES:
            window.lost.append(LostRange(first, last, lost.value))

    def _step(self, window: StreamWindow, step: int, arrived: int | None) -> None:
        if step < 0:
            window.restarts += 1
            self._notable = True
            return
        missing = step - (1 if arrived is None else arrived)
        if missing > 0:
            window.missing += missing
            self._notable = True

    def _window(self, source: TraceSource, key: StreamKey, first: int) -> tuple[_Stream, StreamWindow]:
        worker_id, dp_rank = ledger_name(key[0]), key[1]
        whole = (source, worker_id, dp_rank)
        stream = self._streams.get(whole)
        if stream is None:
            stream = self._streams[whole] = _Stream()
        if stream.window is None:
            stream.window = StreamWindow(
                source.namespace, source.component, worker_id, dp_rank, first=first, last=first
            )
            self._touched.append(stream)
        return stream, stream.window


def _is_one_run(offered: Sequence[Offered], bodies: Sequence[Any]) -> bool:
    """Say whether these are consecutive messages of one stream; documents are looked at one by one.

    A comprehension that looks for one worker and rank takes half of what lists of all keys and counters take.
    """
    try:
        worker_id, rank, first = bodies[0].worker_id, bodies[0].dp_rank, bodies[0].counter_id
        counters = [
            each.counter_id for each in bodies if each.worker_id == worker_id and each.dp_rank == rank
        ]
    except AttributeError:  # a document
        return False
    if counters != list(range(first, first + len(bodies))):
        return False
    return all(map(is_, map(_source_of, offered), repeat(offered[0][0])))


def _identities(bodies: Sequence[Body]) -> tuple[list[StreamKey], list[int]]:
    """Return whose each message is, and its counter."""
    try:
        return list(map(_key_of, bodies)), list(map(_counter_of, bodies))
    except AttributeError:  # one is kept as a document, for the sake of fields that we do not know
        keys, counters = [], []
        for body in bodies:
            if isinstance(body, dict):
                keys.append(StreamKey(body["worker_id"], body["dp_rank"]))
                counters.append(body["counter_id"])
            else:
                keys.append(StreamKey(*_key_of(body)))
                counters.append(body.counter_id)
        return keys, counters
