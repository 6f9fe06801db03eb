"""Knows how to look at the bytes of a file that another process may be writing to.

A memory map would be simpler, but touching a page that a writer has just truncated away kills the
process with SIGBUS; our own writer truncates after a disk error.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import TracebackType

from forwardpass.errors import TracePathError

__all__ = ["FileBytes"]

_WINDOW = 1 << 20


class FileBytes:
    """A regular file, seen at the size it had when it was opened, through a window of 1 MiB.

    Raises :class:`TracePathError` for what is no regular file or cannot be read. If the file shrinks,
    ``size`` shrinks with it.
    """

    __slots__ = ("_fd", "_window", "_window_start", "path", "size")

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._window = b""
        self._window_start = 0
        try:
            # Without O_NONBLOCK opening a FIFO would wait for a writer.
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            raise TracePathError(self.path, _reason(error)) from error
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            raise TracePathError(self.path, "not a regular file")
        self.size = status.st_size

    def __enter__(self) -> FileBytes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def refresh(self) -> None:
        """See the file at the size it has now."""
        self.size = os.fstat(self._fd).st_size
        self._window = b""

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def read(self, start: int, count: int) -> bytes:
        """Return up to ``count`` (at most 1 MiB) bytes from ``start``: fewer only at the end."""
        count = min(count, self.size - start, _WINDOW)
        if count <= 0:
            return b""
        offset = start - self._window_start
        if offset < 0 or offset + count > len(self._window):
            self._fill(start)
            offset = 0
        return self._window[offset : offset + count]

    def find(self, pattern: bytes, start: int, end: int) -> int:
        """Return where ``pattern`` begins at or after ``start`` and ends by ``end``, or -1."""
        end = min(end, self.size)
        while end - start >= len(pattern):
            offset = start - self._window_start
            if offset < 0 or offset + len(pattern) > len(self._window):
                self._fill(start)
                offset = 0
                if len(self._window) < len(pattern):
                    return -1
            stop = min(len(self._window), end - self._window_start)
            found = self._window.find(pattern, offset, stop)
            if found >= 0:
                return self._window_start + found
            start = self._window_start + stop - len(pattern) + 1
        return -1

    def _fill(self, start: int) -> None:
        try:
            window = os.pread(self._fd, min(_WINDOW, self.size - start), start)
        except OSError as error:
            raise TracePathError(self.path, _reason(error)) from error
        wanted = min(_WINDOW, self.size - start)
        while len(window) < wanted:
            more = os.pread(self._fd, wanted - len(window), start + len(window))
            if not more:
                self.size = start + len(window)
                break
            window += more
        self._window = window
        self._window_start = start


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
