"""Runs ``forwardpass trace`` as a user does, in a process of its own, on a small trace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from forwardpass.testing.traces import gzip_member


def trace_process(*arguments: str | Path, text: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a trace command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "forwardpass", "trace", *map(str, arguments)],
        capture_output=True,
        text=text,
        timeout=60,
        check=False,
    )


def small_trace(folder: Path, rows: Sequence[bytes]) -> Path:
    """Write an intact trace of two gzip members; return its path."""
    path = folder / "t.jsonl.gz"
    path.write_bytes(gzip_member(rows[:3]) + gzip_member(rows[3:]))
    return path
