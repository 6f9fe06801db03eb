"""Knows how to run a command of forwardpass, or the bare reader, so that it says what it took.

    python benchmarks/measured_child.py WARM FOLDER read
    python benchmarks/measured_child.py WARM FOLDER trace stats

The command runs over the trace WARM first, so that everything is imported. What it prints goes nowhere. On
stderr comes a line of JSON: CPU seconds and the exit code of the run over FOLDER, wall seconds from the
start of this process, and its peak memory (``VmHWM``) in bytes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def read(folder: str) -> int:
    """Read every row."""
    from forwardpass.trace.reader import TraceReader

    for _ in TraceReader(folder).batches():
        pass
    return 0


def command(words: list[str]) -> int:
    """Run a command and return its exit code."""
    from forwardpass.cli.main import main

    sys.argv = ["forwardpass", *words]
    try:
        main()
        return 0
    except SystemExit as ended:
        return int(ended.code or 0)


def started() -> float:
    """Return when this process was started, in seconds since the machine was."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def peak_bytes() -> int:
    """Return the most memory that this process has had."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def run(words: list[str], folder: str) -> int:
    """Run what was asked for."""
    return read(folder) if words == ["read"] else command([*words, folder])


def main() -> None:
    """Run, and say what it took."""
    warm, folder, *words = sys.argv[1:]
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    run(words, warm)
    begin = time.process_time()
    code = run(words, folder)
    cpu = time.process_time() - begin
    wall = time.clock_gettime(time.CLOCK_BOOTTIME) - started()
    print(json.dumps({"cpu": cpu, "wall": wall, "peak": peak_bytes(), "code": code}), file=sys.stderr)


if __name__ == "__main__":
    main()
