"""Knows how to read ledgers: the runs of a recorder, what each lost and saw, in bounded memory.

Lines that are torn, damaged or of another format are counted and passed over. Of calm times only the extent
is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct, field

from forwardpass.trace.discover import ledger_of
from forwardpass.trace.ledger import (
    LedgerEvent,
    LedgerLine,
    LedgerTotals,
    StreamWindow,
    decode_ledger_line,
)

__all__ = ["MAX_KEPT", "Ledger", "Run", "Window", "read_ledger"]

MAX_KEPT = 20_000
"""Events, and windows with losses, that are kept of one run."""
MAX_LINE_BYTES = 16 << 20


class Window(Struct, frozen=True):
    """A time in which something was lost."""

    from_unix_ms: int
    to_unix_ms: int
    dropped: dict[str, int]
    """By reason, all streams together."""
    streams: list[StreamWindow]
    """Those that lost something."""


class Run(Struct):
    """One life of a recorder."""

    producer_id: str
    run: str
    capture_mode: str
    from_unix_ms: int
    to_unix_ms: int
    totals: LedgerTotals
    """As of the last line."""
    closed: bool = False
    """It was stopped and wrote its last line; otherwise it runs, or was killed."""
    events: list[LedgerEvent] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    """Both in the order of time."""
    engine: str = ""
    """As in :class:`~forwardpass.trace.ledger.Origin`; empty where the recorder did not know."""
    wall_time: str = ""
    omitted: int = 0
    """Events and windows that were not kept, or had no room in the ledger."""

    def add(self, line: LedgerLine) -> None:
        """Take the next line of this run."""
        self.to_unix_ms = max(self.to_unix_ms, line.to_unix_ms)
        self.totals, self.closed = line.totals, line.closed
        self.omitted += line.events_omitted
        for event in line.events:
            if len(self.events) < MAX_KEPT:
                self.events.append(event)
            else:
                self.omitted += 1
        streams = [each for each in line.streams if each.missing or each.lost_count or each.restarts]
        if not line.dropped and not streams:
            return
        if len(self.windows) < MAX_KEPT:
            self.windows.append(Window(line.from_unix_ms, line.to_unix_ms, line.dropped, streams))
        else:
            self.omitted += 1


class Ledger(Struct):
    """What the ledgers beside the segments of one producer say."""

    files: int = 0
    missing: int = 0
    """Segments without a ledger."""
    bad_lines: int = 0
    """Lines that could not be used."""
    runs: list[Run] = field(default_factory=list)
    """In the order of their first lines."""


def read_ledger(segments: Iterable[Path]) -> Ledger:
    """Return what the ledgers beside ``segments`` say; those that cannot be read count as missing."""
    ledger = Ledger()
    runs: dict[str, Run] = {}
    for segment in segments:
        path = ledger_of(segment)
        try:
            if path is None:
                raise FileNotFoundError(segment)
            with path.open("rb") as file:
                ledger.files += 1
                while text := file.readline(MAX_LINE_BYTES):
                    line = decode_ledger_line(text)
                    if line is None:
                        ledger.bad_lines += text != b"\n"
                        continue
                    _add(runs, line)
        except OSError:
            ledger.missing += 1
    ledger.runs = list(runs.values())
    for run in ledger.runs:  # a clock that was set back would spoil their order
        run.events.sort(key=lambda event: event.unix_ms)
        run.windows.sort(key=lambda window: window.to_unix_ms)
    return ledger


def _add(runs: dict[str, Run], line: LedgerLine) -> None:
    run = runs.get(line.run)
    if run is None:
        run = runs[line.run] = Run(
            line.producer_id,
            line.run,
            line.capture_mode,
            line.from_unix_ms,
            line.to_unix_ms,
            line.totals,
            engine=line.engine,
            wall_time=line.wall_time,
        )
    run.add(line)
