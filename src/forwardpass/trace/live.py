"""Knows which segments are being written: whoever writes one holds a lock on it, and retention asks first.

Two recorders with one prefix and one producer id have segments that cannot be told apart by name. The lock
(``flock``) is advisory, belongs to the open file and ends with it, so that a killed process leaves none
behind. Where the file system has no locks, nothing is known to be live, and retention goes by names alone.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

__all__ = ["claim", "let_go", "remove_finished"]

_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def claim(descriptor: int) -> bool:
    """Lock a segment that was just created; return False if somebody is removing it already."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks here
        return True
    return os.fstat(descriptor).st_nlink > 0


def let_go(descriptor: int) -> None:
    """Give the lock back, also where a forked child has the file open still."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def remove_finished(path: str) -> bool:
    """Delete a segment unless somebody writes it, and return whether it was deleted.

    Raises ``OSError`` where it cannot be opened or deleted.
    """
    descriptor = os.open(path, _LOOK)
    try:
        # Shared, because a file that is open for reading gets no other lock on NFS; a writer's excludes it.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    except OSError:  # no locks here
        pass
    try:
        os.unlink(path)
    finally:
        os.close(descriptor)
    return True
