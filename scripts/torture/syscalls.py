"""Knows what the kernel saw of a recording with fsync=flush: strace's account of it (LOSS-06)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from forwardpass.clock import SystemClock
from forwardpass.config.settings import Fsync
from forwardpass.counters import Counters
from forwardpass.testing.traces import trace_line
from forwardpass.trace.preflight import prove_writable
from forwardpass.trace.segments import SegmentNames
from forwardpass.trace.writer import SegmentWriter
from torture.rows import PRODUCER, settings
from torture.run import Run

__all__ = ["check_syscalls", "write_some"]

SCRIPTS = Path(__file__).parent.parent
LIMIT_SECONDS = 90.0
FORCED = "LOSS-06: each write to a segment is followed by an fsync of it, and of the folder of a new one"
SEEN = "LOSS-06: strace saw every write and every new segment"

_CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)(?:<(.*)>)?")
_FIRST = re.compile(r"^\d+<([^>]*)>")


def write_some(folder: Path, flushes: int) -> None:
    """Write so many members, three to a segment, each forced. Runs in the process that is watched."""
    chosen = settings(folder / "new", fsync=Fsync.FLUSH, roll_bytes=3 * len(trace_line(0)) + 20)
    names = SegmentNames.of(chosen.output_prefix, PRODUCER)
    prove_writable(names.prefix)
    writer = SegmentWriter(names, chosen, Counters(), SystemClock())
    writer.open()
    for number in range(flushes):
        writer.append(trace_line(number % 10) + b"\n", 1)
        writer.flush()
    writer.close()


def check_syscalls(run: Run) -> None:
    """Watch a recording from outside, where strace is installed and may."""
    folder, account, flushes = run.sub("watched"), run.folder / "account", run.times(30, 2000)
    strace = shutil.which("strace")
    code = f"import pathlib, torture.syscalls as s; s.write_some(pathlib.Path({str(folder)!r}), {flushes})"
    command = [str(strace), "-f", "-y", "-e", "trace=openat,write,fsync", "-o", str(account)]
    done = strace and subprocess.run(
        [*command, sys.executable, "-c", code],
        cwd=SCRIPTS,
        capture_output=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if not done or (done.returncode and b"ptrace" in done.stderr.lower()):
        run.skipped["the system calls"] = "strace is not installed, or may not trace here"
        return
    writes = segments = 0
    unforced: set[str] = set()
    for call, path, creates in _calls(account.read_text(encoding="utf-8", errors="replace")):
        if creates:
            segments += 1
            unforced.add(os.path.dirname(path))
        elif call == "write":
            writes += 1
            run.note(FORCED, path not in unforced and len(unforced) <= 1, sorted(unforced))
            unforced.add(path)
        else:
            unforced.discard(path)
    run.note(FORCED, not unforced, sorted(unforced))
    run.note(SEEN, writes == flushes and segments >= flushes // 3, f"{writes} writes, {segments} segments")
    run.facts["writes that strace saw"] = f"{writes:,}, in {segments:,} segments"


def _calls(account: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (call, path, whether it made a segment) of what concerns segments, and every fsync."""
    for line in account.splitlines():
        match = _CALL.match(line)
        if match is None or match[3].startswith("-"):
            continue
        call, arguments, opened = match[1], match[2], match[4]
        if call == "openat":
            if "O_CREAT" in arguments and opened and opened.endswith(".jsonl.gz"):
                yield call, opened, True
            continue
        first = _FIRST.match(arguments)
        if first and (call == "fsync" or first[1].endswith(".jsonl.gz")):
            yield call, first[1], False
