"""Knows how to end with its parent, and how to become another program.

Run as a script, by its path: ``python -I -S bond.py PARENT_PID COMMAND…``. It imports the standard
library only. The kernel sends SIGTERM when the parent dies, however it dies, and the bond survives the
``exec``. Doing this in the parent between ``fork`` and ``exec`` instead is not safe once threads run.
"""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
"""``prctl(2)``; Linux only."""


def _bind_to_parent(parent: int) -> bool:
    """Ask for SIGTERM at the parent's death; False when the parent is gone already."""
    if not sys.platform.startswith("linux"):
        return True
    try:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    except (ImportError, OSError, AttributeError):  # serving without the bond beats not serving
        return True
    return os.getppid() == parent


def main(arguments: list[str]) -> int:
    """Become ``arguments[1:]``, bound to the process ``arguments[0]``; returns only on failure."""
    parent, command = int(arguments[0]), arguments[1:]
    if not _bind_to_parent(parent):
        return 128 + signal.SIGTERM
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.stderr.write(f"forwardpass: {command[0]}: {error.strerror}\n")
        return 126 if isinstance(error, PermissionError) else 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
