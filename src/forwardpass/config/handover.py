"""Knows what a process of ours hands to the processes it starts: an id, who records, what was said, where a
benchmark's folder is.

Three variables of the environment carry it. They are written by this package for its own use, so they are no
settings and stand in no table: nobody else should set them.
"""

from __future__ import annotations

import secrets
import zlib
from pathlib import Path

from msgspec import Struct

from forwardpass.wire.keys import MAX_PRODUCER_ID

__all__ = [
    "BENCH_FOLDER",
    "RECORDER",
    "SAID",
    "RecorderMark",
    "draw_id",
    "parse_mark",
    "process_start",
    "said_with",
    "was_said",
]

RECORDER = "FORWARDPASS_RECORDER"
"""Names the process that records an engine's streams, for whoever might start a second one."""
SAID = "FORWARDPASS_SAID"
"""Digests of warnings that need not be given again by the processes of the same server."""
BENCH_FOLDER = "FORWARDPASS_BENCH_FOLDER"
"""Names the folder of a launch that measures its engine first (``bench/handover.py``)."""

_PROC = Path("/proc")
_DEAD = frozenset({"Z", "X", "x"})


def draw_id() -> str:
    """Return a random id in decimal, 1 … 2**53 - 1 (decision D-29)."""
    return str(1 + secrets.randbelow(MAX_PRODUCER_ID))


class RecorderMark(Struct, frozen=True):
    """Process ``pid`` sees to the streams of the global ranks ``first_rank`` … at ``base_port`` + rank."""

    pid: int
    started: int
    """When the kernel started it, in clock ticks since boot: tells it from a later process of its number."""
    base_port: int
    first_rank: int
    ranks: int
    worker_id: str
    """The id that the engine behind the streams has."""

    @property
    def text(self) -> str:
        """The mark as the text of its variable."""
        numbers = (self.pid, self.started, self.base_port, self.first_rank, self.ranks)
        return ":".join([*map(str, numbers), self.worker_id])

    def covers(self, base_port: int, ranks: range) -> bool:
        """Say whether all of ``ranks`` at ``base_port`` are among the marked streams."""
        ours = range(self.first_rank, self.first_rank + self.ranks)
        return base_port == self.base_port and all(rank in ours for rank in ranks)

    def is_alive(self, proc: Path = _PROC) -> bool:
        """Say whether that very process still runs."""
        return process_start(self.pid, proc) == self.started


def parse_mark(text: str | None) -> RecorderMark | None:
    """Return the mark in ``text``; ``None`` for none, and for what is no mark."""
    parts = (text or "").split(":", 5)
    try:
        pid, started, base_port, first_rank, ranks = (int(part) for part in parts[:5])
    except ValueError:
        return None
    return RecorderMark(pid, started, base_port, first_rank, ranks, parts[5]) if len(parts) == 6 else None


def process_start(pid: int, proc: Path = _PROC) -> int | None:
    """Return when process ``pid`` was started, in ticks since boot; ``None`` if it does not run any more.

    The kernel's file is described in proc_pid_stat(5): state is field 3, the start field 22. The name
    before them may hold blanks and parentheses.
    """
    try:
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if fields[0] in _DEAD else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def was_said(text: str, said: str | None) -> bool:
    """Say whether ``said`` (the variable's text) has ``text``."""
    return _digest(text) in (said or "").split(",")


def said_with(text: str, said: str | None) -> str:
    """Return the variable's text with ``text`` in it."""
    return ",".join([*filter(None, (said or "").split(",")), _digest(text)])


def _digest(text: str) -> str:
    return f"{zlib.crc32(text.encode(errors='surrogateescape')):08x}"
