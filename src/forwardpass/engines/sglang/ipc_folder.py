"""Knows where the sockets of an SGLang server go, and that nothing of them is left behind (decision D-16).

A UNIX socket's path may have 107 bytes, so the folder is a short one. It is named after the process that made
it: what a launcher that was killed left is removed by the next one of the same user.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from forwardpass.config.handover import process_start

__all__ = ["MAX_PATH_BYTES", "ipc_folder", "sweep"]

MAX_PATH_BYTES = 107
"""What fits into ``sockaddr_un`` on Linux, without the closing zero."""
_FALLBACK = Path("/tmp")
_NAME = "fpm"
_OWN = re.compile(r"fpm-sgl-(\d{1,10})-(\d{1,20})-\w+\Z")
_LONGEST_RANK = 5
"""``.`` and a rank of up to four digits."""


@contextlib.contextmanager
def ipc_folder() -> Iterator[str]:
    """Make a folder for sockets and yield their base, ``ipc://PATH``; remove it with all that is in it.

    Raises ``OSError`` where no folder can be made.
    """
    parent = Path(tempfile.gettempdir())
    pid = os.getpid()
    prefix = f"fpm-sgl-{pid}-{process_start(pid) or 0}-"
    longest = len(os.fsencode(parent / f"{prefix}12345678" / _NAME)) + _LONGEST_RANK
    if longest > MAX_PATH_BYTES:
        parent = _FALLBACK
    sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield f"ipc://{folder / _NAME}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path) -> int:
    """Remove the folders in ``parent`` of launchers that do not run any more; return how many."""
    removed = 0
    for folder in parent.glob("fpm-sgl-*"):
        match = _OWN.match(folder.name)
        if match is None or process_start(int(match[1])) == int(match[2]):
            continue
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid():  # a stranger's folder of that name is left alone
                shutil.rmtree(folder)
                removed += 1
    return removed
