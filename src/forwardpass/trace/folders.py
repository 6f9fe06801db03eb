"""Knows how a folder is made, and how the names in it are forced to the disk."""

from __future__ import annotations

import errno
import os

__all__ = ["CANNOT_SYNC", "make_folder", "sync_folder"]

CANNOT_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})
"""What file systems say that have no sync of folders: nothing is wrong, and nothing more can be done."""


def make_folder(path: str) -> list[str]:
    """Make the folder and those above it where they are missing; return those that got a new entry.

    After a power loss a new folder is there only if the folder above it was synced. Raises ``OSError``.
    """
    changed = []
    missing = path
    while not os.path.lexists(missing):
        missing = os.path.dirname(missing) or "."
        changed.append(missing)
    os.makedirs(path, exist_ok=True)
    return changed


def sync_folder(path: str) -> None:
    """Force the names in a folder to the disk. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
