"""Knows the first and the last row of a file without reading all of it."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import NamedTuple

from forwardpass.trace.file_bytes import FileBytes
from forwardpass.trace.member_scan import GZIP_MAGIC, PIECE_BYTES, inflate, intact_member
from forwardpass.trace.record import TraceRecord, decode_lines
from forwardpass.trace.report import FileFormat, FileReport
from forwardpass.trace.segment_reader import SegmentReader

__all__ = ["FileEnds", "read_ends"]

_LOOK_BACK_BYTES = 4 << 20
_STEP_BYTES = 1 << 18
_MAX_ROW_BYTES = 1 << 20


class FileEnds(NamedTuple):
    """The ends of one file."""

    size: int
    format: FileFormat
    first: TraceRecord | None
    last: TraceRecord | None
    """``None`` if no row was found in the last 4 MiB."""


def read_ends(path: Path) -> FileEnds:
    """Return the first and last rows of a file. Raises :class:`TracePathError` if it cannot be read."""
    with FileBytes(path) as file:
        report = FileReport(str(path))
        batches = SegmentReader(file, report, lambda _: None, _MAX_ROW_BYTES, decode_lines).batches()
        first = next((batch[0] for batch in batches if batch), None)
        find_last = _last_in_gzip if report.format is FileFormat.GZIP else _last_in_text
        return FileEnds(file.size, report.format, first, find_last(file) if first else None)


def _last_in_gzip(file: FileBytes) -> TraceRecord | None:
    """Look for the last intact member that holds a row, backwards from the end."""
    end = file.size
    lowest = max(0, file.size - _LOOK_BACK_BYTES)
    while end > lowest:
        start = max(lowest, end - _STEP_BYTES)
        for candidate in reversed(_headers(file, start, end)):
            region = intact_member(file, candidate)
            if region is not None:
                tail = deque(inflate(file, region), maxlen=_MAX_ROW_BYTES // PIECE_BYTES)
                record = _last_row(b"".join(tail))
                if record is not None:
                    return record
        end = start
    return None


def _headers(file: FileBytes, start: int, end: int) -> list[int]:
    """Return where a gzip header may begin in ``start`` … ``end``; it may reach beyond ``end``."""
    found = []
    position = file.find(GZIP_MAGIC, start, end + len(GZIP_MAGIC) - 1)
    while position >= 0:
        found.append(position)
        position = file.find(GZIP_MAGIC, position + 1, end + len(GZIP_MAGIC) - 1)
    return found


def _last_in_text(file: FileBytes) -> TraceRecord | None:
    return _last_row(file.read(max(0, file.size - _MAX_ROW_BYTES), _MAX_ROW_BYTES))


def _last_row(text: bytes) -> TraceRecord | None:
    for line in reversed(text.rsplit(b"\n", 64)):
        records = decode_lines([line]) if line else None
        if records:
            return records[0]
    return None
