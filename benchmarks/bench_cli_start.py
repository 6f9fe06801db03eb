"""Knows what it costs to ask the command line for help: everything that every command pays before it works.

The goal is 250 ms of CPU on one core. The ratio is to an interpreter that does nothing, which is what a
faster machine would shorten too.
"""

from __future__ import annotations

import os
import subprocess
import sys

from harness import Result, compare, run_script

__all__ = ["main"]

GOAL_MS = 250.0
NOTHING = [sys.executable, "-c", "pass"]
HELP = [sys.executable, "-m", "forwardpass", "--help"]
CODEC = [sys.executable, "-c", "import forwardpass; forwardpass.decode(b'')"]


def cpu_seconds(command: list[str]) -> float:
    """Run ``command`` and return the CPU seconds that it took, user and system."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> list[Result]:
    """Compare the start of the command line, and the first use of the codec, with doing nothing."""
    ways = {
        "python -c pass": lambda: cpu_seconds(NOTHING),
        "import, decode once": lambda: cpu_seconds(CODEC),
        "forwardpass --help": lambda: cpu_seconds(HELP),
    }
    result = compare("command line start, CPU", ways, unit="ms", rounds=15)
    median = result.sides[-1].median
    verdict = "met" if median <= GOAL_MS else "MISSED"
    return [_noted(result, f"goal: at most {GOAL_MS:.0f} ms of CPU for --help; {median:.0f} ms, {verdict}")]


def _noted(result: Result, note: str) -> Result:
    return Result(result.name, result.unit, result.rounds, result.sides, result.goal, note)


if __name__ == "__main__":
    run_script(main)
