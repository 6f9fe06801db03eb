"""Knows where collected rows go: what any output must do, and the one that writes trace segments."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from forwardpass.clock import Clock
from forwardpass.collect.sort import CollectedRow
from forwardpass.config.settings import TraceSettings
from forwardpass.counters import Counters, DropReason
from forwardpass.errors import TracePathError
from forwardpass.trace.discover import find_segments
from forwardpass.trace.preflight import prove_writable
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.record import MessageId
from forwardpass.trace.segments import SegmentNames
from forwardpass.trace.writer import SegmentWriter

__all__ = ["Output", "SegmentOutput"]


class Output(Protocol):
    """Where rows go. All methods are called off the event loop, one at a time."""

    def written_before(self, most: int) -> list[MessageId]:
        """Return the messages of the newest ``most`` rows or so that are there already, oldest first."""
        ...

    def write(self, rows: Sequence[CollectedRow]) -> list[bool]:
        """Write ``rows`` so that they outlast this process; return for each whether it is there now."""
        ...

    def close(self) -> None:
        """Finish what is open. Idempotent."""
        ...

    @property
    def files(self) -> tuple[str, ...]:
        """The files written here that are still there, oldest first."""
        ...


class SegmentOutput:
    """Writes the segments of one collector; each ``write`` ends with whole gzip members.

    Messages that were delivered before go into segments of their own, called ``<name>-again``: they are older
    than what is written at the same time, and a merge can only put rows in order that stand near their place.
    ``settings.fsync`` says whether a member is forced to the disk before its rows count as written. Raises
    :class:`TracePathError` for a prefix that cannot be written.
    """

    def __init__(self, settings: TraceSettings, name: str, clock: Clock) -> None:
        prove_writable(settings.output_prefix)
        self._prefix = settings.output_prefix
        self._first = _Lane(settings, name, clock)
        self._again = _Lane(settings, f"{name}-again", clock)

    def written_before(self, most: int) -> list[MessageId]:
        """Return the messages of the newest rows below the prefix, whichever collector wrote them."""
        newest_last: list[MessageId] = []
        for path in _newest_first(self._prefix):
            newest_last[:0] = _messages(path)
            if len(newest_last) >= most:
                break
        return newest_last[-most:]

    def write(self, rows: Sequence[CollectedRow]) -> list[bool]:
        """Append ``rows`` and flush them. A failing disk costs the rows of a member, never an exception."""
        fates = [False] * len(rows)
        for lane, is_again in ((self._first, False), (self._again, True)):
            places = [at for at, row in enumerate(rows) if (row.delivery.times > 1) is is_again]
            places.sort(key=lambda at: rows[at].delivery.stored_at_unix_ms)
            written = lane.write([rows[at].line for at in places])
            for at, there in zip(places, written, strict=True):
                fates[at] = there
        return fates

    def close(self) -> None:
        """Close the segments."""
        self._first.writer.close()
        self._again.writer.close()

    @property
    def files(self) -> tuple[str, ...]:
        """The segments written here that retention left in place."""
        return (*self._first.writer.paths, *self._again.writer.paths)


class _Lane:
    """A series of segments, and what became of the rows that were written last."""

    def __init__(self, settings: TraceSettings, name: str, clock: Clock) -> None:
        names = SegmentNames.of(settings.output_prefix, name)
        self.writer = SegmentWriter(names, settings, Counters(), clock, watch=self)
        self.writer.open()
        self._fates: list[bool] = []

    def write(self, lines: Sequence[bytes]) -> list[bool]:
        """Append ``lines`` and flush them; return which of them are there."""
        self._fates = []
        if lines:
            self.writer.append(b"".join(lines), len(lines))
            self.writer.flush()
        return self._fates

    def settled(self, rows: int, lost: DropReason | None) -> None:
        """Take note of what the writer did, in the order of the rows."""
        self._fates += [lost is None] * rows

    def segment_ends(self, index: int) -> None:
        """Do nothing: rows say for themselves which messages they are."""


def _newest_first(prefix: str) -> list[Path]:
    try:
        found = find_segments(prefix)
    except TracePathError:  # there is nothing yet
        return []
    times = {path: time for path in found if (time := _modified(path)) is not None}
    return sorted(times, key=lambda path: times[path], reverse=True)


def _modified(path: Path) -> float | None:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return None


def _messages(path: Path) -> Iterator[MessageId]:
    """Yield the messages of a segment as far as it can be read."""
    try:
        for row in TraceReader(path):
            if row.message_id is not None:
                yield row.message_id
    except TracePathError:  # gone, or not ours to read
        return
