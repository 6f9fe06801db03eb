"""Knows how a small file system is had, where this process may mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["small_disk"]

LIMIT_SECONDS = 30.0


@contextmanager
def small_disk(folder: Path, kibibytes: int) -> Iterator[bool]:
    """Mount a file system of this size at ``folder``; give False where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(folder)]
    try:
        mounted = (
            os.geteuid() == 0
            and not subprocess.run(
                command, capture_output=True, timeout=LIMIT_SECONDS, check=False
            ).returncode
        )
    except FileNotFoundError:  # no mount command
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True, timeout=LIMIT_SECONDS)
