"""Knows how rows get into a new trace file that is there whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from forwardpass.errors import TracePathError
from forwardpass.trace.gzip_member import compress_member
from forwardpass.trace.segment_file import SegmentFile
from forwardpass.trace.writer import FLUSH_BYTES

__all__ = ["NewTraceFile"]


class NewTraceFile:
    """Rows on their way into a new file, in gzip members of about a mebibyte or as plain lines.

    A context manager: the file is created with the first rows, and removed again if the block fails. What
    has its name in any form is not touched. Raises :class:`~forwardpass.errors.TracePathError` for such a
    name and where the disk fails.
    """

    def __init__(self, path: Path) -> None:
        self.rows = 0
        self.compressed = True
        """Whether it is gzip; may be set until the first rows are written."""
        self._path = str(path)
        self._file: SegmentFile | None = None
        self._lines: list[bytes] = []
        self._size = 0

    def __enter__(self) -> NewTraceFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._flush()
                if self._file is not None:
                    self._file.sync()
        except OSError as failed:
            self._discard()
            raise self._refused(failed) from failed
        except BaseException:
            self._discard()
            raise
        if error is not None:
            self._discard()
        elif self._file is not None:
            self._file.close()

    def add(self, line: bytes) -> None:
        """Append a row, given without its newline."""
        self._lines.append(line)
        self._size += len(line) + 1
        self.rows += 1
        if self._size >= FLUSH_BYTES:
            try:
                self._flush()
            except OSError as error:
                raise self._refused(error) from error

    def _flush(self) -> None:
        if not self._lines:
            return
        if self._file is None:
            self._file = self._create()
        text = b"\n".join([*self._lines, b""])
        self._file.append(compress_member(text) if self.compressed else text)
        self._lines, self._size = [], 0

    def _create(self) -> SegmentFile:
        try:
            return SegmentFile(self._path)
        except FileExistsError as error:
            raise TracePathError(self._path, "is there already; name another one") from error

    def _refused(self, error: OSError) -> TracePathError:
        return TracePathError(self._path, f"cannot be written: {error.strerror}")

    def _discard(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            with suppress(OSError):
                os.unlink(self._path)
