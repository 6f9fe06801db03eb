"""Knows how one file of a trace is created and appended to."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from forwardpass.trace.live import claim, let_go

__all__ = ["SegmentFile"]

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class SegmentFile:
    """One open segment. Every method but ``deleted`` and ``close`` raises ``OSError``."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str) -> None:
        """Create ``path``, which must not exist in any form (``FileExistsError``)."""
        self.path = path
        self._descriptor = os.open(path, _CREATE, 0o666)
        if not claim(self._descriptor):
            os.close(self._descriptor)
            raise FileExistsError(errno.EEXIST, "another recorder is removing it", path)

    def size(self) -> int:
        """Return the bytes in the file."""
        return os.fstat(self._descriptor).st_size

    def deleted(self) -> bool:
        """Say whether no folder lists the file any more: nobody would ever find what is written to it.

        True as well where it cannot be asked (``ESTALE``: deleted on the server of a network file system).
        """
        try:
            return os.fstat(self._descriptor).st_nlink == 0
        except OSError:
            return True

    def append(self, data: bytes) -> None:
        """Write all of ``data`` at the end. After an error some of it may be there."""
        view = memoryview(data)
        while view:
            written = os.write(self._descriptor, view)
            if not written:
                raise OSError(errno.EIO, "nothing was written", self.path)
            view = view[written:]

    def truncate(self, size: int) -> None:
        """Cut the file back to ``size`` bytes."""
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Force the file to the disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; errors are of no use to anybody any more."""
        let_go(self._descriptor)
        with suppress(OSError):
            os.close(self._descriptor)
