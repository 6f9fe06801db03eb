"""Knows how to find what a ledger says of a stream at a time, however long the ledger is."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from forwardpass.analyze.coverage import StreamId
from forwardpass.trace.ledger import EventKind, LedgerEvent, StreamWindow, ledger_name
from forwardpass.trace.ledger_reader import Ledger, Run, Window

__all__ = ["dropped_in", "events_in", "is_of", "may_be_of", "run_at", "stalled_before", "windows_in"]

STALL_MATTERS_MS = 60_000
"""A stall explains what is lost until what had waited meanwhile is worked off."""


def events_in(run: Run, begin_ms: int, end_ms: int) -> Sequence[LedgerEvent]:
    """Return what the relays saw from ``begin_ms`` to ``end_ms``, in the order of time."""
    events = run.events
    first = bisect_left(events, begin_ms, key=lambda event: event.unix_ms)
    return events[first : bisect_right(events, end_ms, lo=first, key=lambda event: event.unix_ms)]


def windows_in(run: Run, begin_ms: int, end_ms: int) -> Iterator[Window]:
    """Yield the windows with losses that touch this time."""
    windows = run.windows
    for at in range(bisect_left(windows, begin_ms, key=lambda window: window.to_unix_ms), len(windows)):
        if windows[at].from_unix_ms > end_ms:
            return
        yield windows[at]


def dropped_in(runs: Iterable[Run], begin_ms: int, end_ms: int) -> dict[str, int]:
    """Return how many messages were dropped in the windows that touch this time, by reason."""
    dropped: dict[str, int] = {}
    for run in runs:
        for window in windows_in(run, begin_ms, end_ms):
            for reason, number in window.dropped.items():
                dropped[reason] = dropped.get(reason, 0) + number
    return dropped


def stalled_before(run: Run, event: LedgerEvent) -> float | None:
    """Return for how many seconds the relay of ``event`` had stood still shortly before, if it had."""
    near = events_in(run, event.unix_ms - STALL_MATTERS_MS, event.unix_ms)
    stalls = [each.seconds for each in near if each.kind is EventKind.STALLED and each.url == event.url]
    return stalls[-1] if stalls else None


def run_at(ledger: Ledger, unix_ms: int) -> Run | None:
    """Return the run that wrote a row observed at ``unix_ms``: the last one that had begun by then."""
    begun = [run for run in ledger.runs if run.from_unix_ms <= unix_ms]
    return begun[-1] if begun else None


def is_of(stream: StreamId, window: StreamWindow) -> bool:
    """Say whether a window tells of this stream."""
    named = stream._replace(worker_id=ledger_name(stream.worker_id))
    return named == (window.namespace, window.component, window.worker_id, window.dp_rank)


def may_be_of(stream: StreamId, event: LedgerEvent) -> bool:
    """Say whether an event may concern this stream: it does, or its owner could not be read."""
    return event.worker_id in (None, ledger_name(stream.worker_id)) and event.dp_rank in (
        None,
        stream.dp_rank,
    )
