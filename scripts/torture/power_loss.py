"""Knows what would be left of a folder after a power loss: what was forced to the disk, and nothing else.

It watches the calls ``fsync``, ``mkdir`` and ``ftruncate`` of this process. A file is there afterwards if its
name was forced to the disk with its folder, and that folder's name with the folder above it, up to one that
was there before; it holds what it held when it was last forced.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["PowerLoss"]


class PowerLoss:
    """A context in which the calls are watched. ``refuse`` may raise for a path that is being forced."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._names: dict[str, set[str]] = {}
        """Folder -> the names in it that are on the disk."""
        self._bytes: dict[str, bytes] = {}
        """File -> what of it is on the disk."""
        self.syncs: list[str] = []
        self.refuse: Callable[[str], None] = lambda path: None
        self._real = os.fsync, os.mkdir

    def __enter__(self) -> PowerLoss:
        for folder, folders, files in os.walk(self._base):
            self._names[folder] = {*folders, *files}
        os.fsync, os.mkdir = self._fsync, self._mkdir
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync, os.mkdir = self._real

    def forget(self, folder: Path) -> None:
        """A folder was removed with all that was in it."""
        gone = str(folder)
        for known in (self._names, self._bytes):
            for path in [path for path in known if path == gone or path.startswith(gone + os.sep)]:
                del known[path]
        self._names[os.path.dirname(gone)].discard(os.path.basename(gone))

    def left(self, path: Path) -> bytes | None:
        """Return what would be left of a file, or ``None`` if it would not be found."""
        place = str(path)
        while place != str(self._base):
            folder, name = os.path.split(place)
            if name not in self._names.get(folder, ()):
                return None
            place = folder
        return self._bytes.get(str(path), b"")

    def _fsync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self.refuse(path)
        self._real[0](descriptor)
        self.syncs.append(path)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._names[path] = set(os.listdir(path))
        else:
            with open(f"/proc/self/fd/{descriptor}", "rb") as file:
                self._bytes[path] = file.read()

    def _mkdir(self, path: Any, *rest: Any, **more: Any) -> None:
        self._real[1](path, *rest, **more)
        self._names[os.path.abspath(path)] = set()
