"""Knows how the lines of a ledger reach the disk, beside the segment that is being written.

A ledger is for explaining. That it cannot be written is said once in a while and costs no row of the trace.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from forwardpass.clock import Clock
from forwardpass.quiet import QuietLog
from forwardpass.trace.ledger import LedgerLine, encode_ledger_line
from forwardpass.trace.segment_file import SegmentFile
from forwardpass.trace.segments import SegmentNames

__all__ = ["LedgerFile"]

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class LedgerFile:
    """The ledger of the current segment. Belongs to one thread; never raises."""

    def __init__(self, names: SegmentNames, clock: Clock, create: Callable[[str], SegmentFile]) -> None:
        self._names = names
        self._clock = clock
        self._create_file = create
        self._log = QuietLog(logger, clock)
        self._file: SegmentFile | None = None
        self._index: int | None = None
        self._given_up: int | None = None
        self._torn = False
        self._retry_at = 0.0

    def append(self, index: int, line: LedgerLine, *, last: bool = False) -> bool:
        """Write ``line`` beside segment ``index``; say whether it was written.

        After a failure the next try waits for a second, unless it is the ``last`` one for this segment.
        """
        now = self._clock.monotonic()
        if index == self._given_up or (now < self._retry_at and not last):
            return False
        path = self._names.ledger_path(index)
        try:
            self._write(self._open(index, path), encode_ledger_line(line))
        except FileExistsError:  # planted, or left by another life: not ours to write to
            self._given_up = index
            self._log.warning("taken", f"{path} is there already; segment {index} has no ledger")
            return False
        except OSError as error:
            self._retry_at = now + RETRY_SECONDS
            self._log.warning("write", f"ledger {path} cannot be written: {error.strerror or error}")
            return False
        return True

    def close(self) -> None:
        """Close the file, if one is open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, index: int, path: str) -> SegmentFile:
        if self._file is None or index != self._index:
            self.close()
            self._file, self._index, self._torn = self._create_file(path), index, False
        return self._file

    def _write(self, file: SegmentFile, text: bytes) -> None:
        size = file.size()
        try:
            file.append(b"\n" + text if self._torn else text)
            self._torn = False
        except OSError:
            self._torn = True
            with suppress(OSError):
                file.truncate(size)
                self._torn = False
            raise
