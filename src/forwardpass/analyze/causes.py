"""Knows why counters are missing in a trace, from what the recorders' ledgers say, and what cannot be known.

Every cause needs evidence that fits in time and in number. What has none stays ``unknown``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from msgspec import Struct

from forwardpass.analyze.coverage import Hole, HoleKind, StreamId
from forwardpass.analyze.evidence import (
    dropped_in,
    events_in,
    is_of,
    may_be_of,
    run_at,
    stalled_before,
    windows_in,
)
from forwardpass.analyze.missing import Missing
from forwardpass.analyze.spans import carve, length
from forwardpass.counters import DropReason
from forwardpass.trace.ledger import CounterRange, EventKind, LedgerEvent
from forwardpass.trace.ledger_reader import Ledger, Run

__all__ = ["Cause", "Gap", "explain", "explain_sampled"]

SLACK_MS = 2_000
"""How far the time of evidence may lie outside a hole: what is lost is noticed with the next message, and
told with the next flush.
"""


_TOLD_EXACTLY = frozenset({DropReason.DISK_ERROR.value, DropReason.QUEUE_FULL.value})
"""Reasons for which a ledger names the counters, or that are looked at on their own."""


class Cause(StrEnum):
    """Why counters are missing."""

    SAMPLING = "sampling"
    """Sampled mode leaves rows out on purpose."""
    QUEUE = "queue"
    """The recorder's own queue was full: the disk was slower than the stream."""
    DISK = "disk"
    """The file system refused the bytes."""
    REFUSED = "refused"
    """The recorder could not use them (malformed, too large), or was out of time or memory."""
    SOCKET = "socket"
    """Dropped between publisher and recorder while the connection stood: one of the sockets was full."""
    WIRE = "wire"
    """Sent while there was no connection."""
    RESTART = "restart"
    """The publisher began again; what it sent before the recorder was connected is not seen."""
    RECORDER_DOWN = "recorder_down"
    """No recorder was at work."""
    DAMAGE = "damage"
    """Recorded, but the file is damaged there."""
    DELETED = "deleted"
    """Recorded in a file that is not there any more."""
    UNKNOWN = "unknown"
    """Nothing tells."""


class Gap(Struct, frozen=True):
    """Missing counters of one stream, and why."""

    stream: StreamId
    first: int
    last: int
    """Both included; ``last`` before ``first``: a restart that skipped nothing visible."""
    count: int
    before_unix_ms: int
    after_unix_ms: int
    """When the rows on both sides were observed."""
    cause: Cause
    evidence: str
    """What says so, in words."""


def explain(stream: StreamId, missing: Missing, ledgers: Sequence[Ledger]) -> list[Gap]:
    """Return the causes of one hole, one for each part of it. ``ledgers`` is one for each recorder."""
    hole = missing.hole
    runs = _runs_around(missing, ledgers)
    gaps: list[Gap] = []
    rest = [CounterRange(hole.first, hole.last)]
    if hole.kind is HoleKind.JUMP:
        for first, last, cause, words in _exact(stream, hole, runs):
            taken, rest = carve(rest, first, last)
            gaps.extend(_gap(stream, hole.before_ms, hole.after_ms, span, cause, words) for span in taken)
    if rest:
        cause, words = _rest(stream, missing, ledgers, runs, length(rest))
        gaps.extend(_gap(stream, hole.before_ms, hole.after_ms, span, cause, words) for span in rest)
    return sorted(gaps, key=lambda gap: gap.first)


def explain_sampled(stream: StreamId, ledgers: Iterable[Ledger]) -> tuple[list[Gap], int | None]:
    """Return the gaps in a sampled stream that a relay saw, and how many messages never reached the writer.

    The rows cannot tell: counters between them are left out on purpose. Without a ledger the number is
    ``None``.
    """
    gaps: list[Gap] = []
    unseen: int | None = None
    for ledger in ledgers:
        for run in ledger.runs:
            unseen = (unseen or 0) + sum(
                each.missing for window in run.windows for each in window.streams if is_of(stream, each)
            )
            for event in run.events:
                if event.kind is EventKind.WIRE_GAP and may_be_of(stream, event):
                    cause, words = _wire_words(event, run)
                    gaps += [
                        _gap(stream, event.unix_ms, event.unix_ms, span, cause, words)
                        for span in event.ranges
                    ]
    return gaps, unseen


def _gap(
    stream: StreamId, before_ms: int, after_ms: int, span: CounterRange, cause: Cause, words: str
) -> Gap:
    return Gap(stream, *span, length([span]), before_ms, after_ms, cause, words)


def _runs_around(missing: Missing, ledgers: Sequence[Ledger]) -> list[Run]:
    hole = missing.hole
    producers = {missing.before, missing.after}
    return [
        run
        for at in producers
        for run in ledgers[at].runs
        if run.from_unix_ms - SLACK_MS <= hole.after_ms and run.to_unix_ms + SLACK_MS >= hole.before_ms
    ]


# --- evidence that names counters --------------------------------------------------------------------


def _exact(stream: StreamId, hole: Hole, runs: Iterable[Run]) -> Iterator[tuple[int, int, Cause, str]]:
    for run in runs:
        for window in windows_in(run, *_around(hole)):
            for each in window.streams:
                if is_of(stream, each):
                    for lost in each.lost:
                        yield lost.first, lost.last, *_lost_words(lost.reason)
        for event in _wire_gaps(stream, hole, run):
            cause, words = _wire_words(event, run)
            for span in event.ranges:
                yield span.first, span.last, cause, words


def _around(hole: Hole) -> tuple[int, int]:
    return hole.before_ms - SLACK_MS, hole.after_ms + SLACK_MS


def _lost_words(reason: str) -> tuple[Cause, str]:
    if reason == DropReason.DISK_ERROR:
        return Cause.DISK, "the recorder could not write them: disk_error"
    return Cause.REFUSED, f"the recorder lost them: {reason}"


def _wire_gaps(stream: StreamId, hole: Hole, run: Run) -> Iterator[LedgerEvent]:
    for event in events_in(run, *_around(hole)):
        if event.kind is EventKind.WIRE_GAP and may_be_of(stream, event):
            yield event


def _wire_words(event: LedgerEvent, run: Run) -> tuple[Cause, str]:
    seconds = stalled_before(run, event)
    stalled = "" if seconds is None else f"; the recorder had stood still for {seconds:.1f} s"
    if event.reconnected:
        return Cause.WIRE, f"the connection to {event.url} was lost and made again{stalled}"
    words = f"{event.url} skipped {event.count:,} numbers while connected: a socket was full{stalled}"
    return Cause.SOCKET, words


# --- what is left ------------------------------------------------------------------------------------


def _rest(
    stream: StreamId, missing: Missing, ledgers: Sequence[Ledger], runs: Sequence[Run], count: int
) -> tuple[Cause, str]:
    hole = missing.hole
    if hole.kind is HoleKind.RESTART:
        return Cause.RESTART, _restart_words(stream, hole, runs)
    if hole.damaged:
        return Cause.DAMAGE, "the files are damaged between these rows (trace verify says where)"
    if hole.segment_missing:
        return Cause.DELETED, "a file of this recorder is not there any more"
    down = _down(missing, ledgers)
    if down is not None:
        return Cause.RECORDER_DOWN, down
    for run in runs:
        for event in _wire_gaps(stream, hole, run):
            if _unlisted(event) >= count:
                return _wire_words(event, run)
    dropped = dropped_in(runs, *_around(hole))
    if dropped.get(DropReason.QUEUE_FULL, 0) >= count:
        number = dropped[DropReason.QUEUE_FULL]
        return Cause.QUEUE, f"the recorder's queue was full and {number:,} messages were dropped in that time"
    refused = {reason: number for reason, number in dropped.items() if reason not in _TOLD_EXACTLY}
    if sum(refused.values()) >= count:
        words = ", ".join(f"{reason} {number:,}" for reason, number in sorted(refused.items()))
        return Cause.REFUSED, f"the recorder lost messages in that time: {words}"
    return Cause.UNKNOWN, _unknown_words(missing, ledgers, runs)


def _unlisted(event: LedgerEvent) -> int:
    """Return how many numbers the event counts beyond those that it lists."""
    return event.count - length(event.ranges)


def _restart_words(stream: StreamId, hole: Hole, runs: Iterable[Run]) -> str:
    seen = [
        event
        for run in runs
        for event in events_in(run, hole.after_ms - SLACK_MS, hole.after_ms + SLACK_MS)
        if event.kind is EventKind.RESTART and may_be_of(stream, event)
    ]
    words = "the counter began again: the publisher was restarted"
    if seen:
        words += f" (its last number was {seen[0].last:,})"
    return f"{words}; what it lost at the end of its former life leaves no gap"


def _down(missing: Missing, ledgers: Sequence[Ledger]) -> str | None:
    """Say that no recorder was at work between the two rows, and what ended the one before."""
    hole = missing.hole
    ended = run_at(ledgers[missing.before], hole.before_ms)
    begun = run_at(ledgers[missing.after], hole.after_ms)
    if missing.before == missing.after and ended is begun:
        return None
    if ended is None or begun is None:
        return "another recorder wrote the next row; no ledger says when the first one ended"
    away = max(0.0, (begun.from_unix_ms - max(ended.to_unix_ms, hole.before_ms)) / 1000)
    how = "was stopped" if ended.closed else "ended without a last word (killed, or its machine went down)"
    return f"the recorder {how}; another one began {away:.1f} s later"


def _unknown_words(missing: Missing, ledgers: Sequence[Ledger], runs: Sequence[Run]) -> str:
    ledger = ledgers[missing.after]
    if not ledger.files:
        return "there is no ledger beside these files: queue, socket and wire cannot be told apart"
    if any(run.omitted for run in runs):
        return "the ledger had no room for everything that happened in that time"
    if not runs or all(run.to_unix_ms < missing.hole.after_ms for run in runs):
        return "the ledger ends before this: the recorder was killed before it said why, or still runs"
    return "nothing in the ledger fits"
