"""Knows how to read traces: any files in, rows out, and a report of all that could not be used.

Files are read as streams. Memory is bounded whatever they hold: a row of at most ``MAX_ROW_BYTES``, up to
1.5 MiB of text and the rows in it. How damage is handled is written in ``segment_reader.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic

from forwardpass.errors import TracePathError
from forwardpass.quiet import QuietLog
from forwardpass.trace.discover import find_segments
from forwardpass.trace.file_bytes import FileBytes
from forwardpass.trace.record import TraceRecord, decode_lines
from forwardpass.trace.report import FileReport, Problem, ProblemKind, TraceReport
from forwardpass.trace.segment_reader import Decode, DecodeText, Rows, SegmentReader

__all__ = [
    "MAX_ROW_BYTES",
    "RowReader",
    "TraceReader",
    "TraceReport",
    "find_segments",
    "log_problem",
    "read_trace",
]

logger = logging.getLogger(__name__)

MAX_ROW_BYTES = 16 << 20
"""Longest row that is read; a usual one has 700 bytes."""

_warnings = QuietLog(logger)


def read_trace(
    paths: str | Path | Iterable[str | Path],
    *,
    on_problem: Callable[[Problem], None] | None = None,
    unverified: bool = False,
) -> Iterator[TraceRecord]:
    """Yield the rows of the traces at ``paths`` (files, folders or prefixes; see :func:`find_segments`).

    ``on_problem`` is called for everything that could not be used; without it, problems are logged, the
    first of each kind and file and then a total each minute. ``unverified`` adds the whole rows of torn
    gzip members, which no checksum proves. Raises :class:`TracePathError` for a path that stands for
    nothing or cannot be read, before the first row.
    """
    reader = TraceReader(paths, on_problem=on_problem or log_problem, unverified=unverified)
    return iter(reader)


class RowReader(Generic[Rows]):
    """Reads traces once and makes of their lines what ``decode`` does; ``report`` says what was in the files.

    With ``decode_text``, text is handed to it in pieces of at least ``gather_bytes``, as far as a file has so
    much, and to ``decode`` where that gives nothing.
    """

    def __init__(
        self,
        paths: str | Path | Iterable[str | Path],
        decode: Decode[Rows],
        *,
        on_problem: Callable[[Problem], None] | None = None,
        max_row_bytes: int = MAX_ROW_BYTES,
        unverified: bool = False,
        decode_text: DecodeText[Rows] | None = None,
        gather_bytes: int = 0,
    ) -> None:
        self.files = find_segments(paths)
        self.report = TraceReport()
        self._decode = decode
        self._decode_text = decode_text
        self._on_problem = on_problem or _ignore
        self._max_row_bytes = max_row_bytes
        self._unverified = unverified
        self._gather_bytes = gather_bytes

    def batches(self) -> Iterator[Rows]:
        """Yield the rows in batches, file by file; none is empty."""
        for path in self.files:
            report = FileReport(str(path))
            self.report.files.append(report)
            try:
                file = FileBytes(path)
            except TracePathError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                problem = Problem(str(path), ProblemKind.UNREADABLE, "the file went away")
                report.add_problem(problem)
                self._on_problem(problem)
                continue
            with file:
                reader = SegmentReader(
                    file,
                    report,
                    self._on_problem,
                    self._max_row_bytes,
                    self._decode,
                    unverified=self._unverified,
                    decode_text=self._decode_text,
                    gather_bytes=self._gather_bytes,
                )
                for batch in reader.batches():
                    if len(batch):
                        yield batch


class TraceReader(RowReader[list[TraceRecord]]):
    """Reads traces once, as records; ``report`` says what was in the files.

    Iterate over it for rows, or over :meth:`batches` for lists of rows (faster).
    """

    def __init__(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        on_problem: Callable[[Problem], None] | None = None,
        max_row_bytes: int = MAX_ROW_BYTES,
        unverified: bool = False,
    ) -> None:
        super().__init__(
            paths, decode_lines, on_problem=on_problem, max_row_bytes=max_row_bytes, unverified=unverified
        )

    def __iter__(self) -> Iterator[TraceRecord]:
        for batch in self.batches():
            yield from batch


def _ignore(problem: Problem) -> None:
    """Leave the problem to the report."""


def log_problem(problem: Problem) -> None:
    """Log a problem: the first of each kind and file, and then a total each minute."""
    _warnings.warning((problem.path, problem.kind), str(problem))
