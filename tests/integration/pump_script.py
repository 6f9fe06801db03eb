"""Scripts that use a pump in an interpreter of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

SCRIPT_HEAD = """
import os, signal, sys, threading, time
from forwardpass.counters import Counters
from forwardpass.pump import Pump

class Task:
    def __init__(self, counters): self.counters, self.seen, self.log = counters, [], []
    def open(self): self.log.append(f"open {os.getpid()}")
    def tick(self, now, queued): return 1.0
    def take(self, items):
        self.seen += items
        self.counters.delivered += len(items)
    def close(self, deadline): self.log.append(f"close {os.getpid()}")
    def forked(self): self.log.append(f"forked {os.getpid()}")

def make(**kwargs):
    counters = Counters()
    task = Task(counters)
    return Pump(task, name="script", capacity=1000, counters=counters, **kwargs), task

def in_child(body):
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            body()
            code = 0
        except BaseException as error:
            print("child:", repr(error), flush=True)
        finally:
            os._exit(code)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0, status
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    raise SystemExit("the child hangs")
"""


def run_script(body: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run ``body`` in a fresh interpreter that shows every warning."""
    script = SCRIPT_HEAD + textwrap.dedent(body)
    return subprocess.run(
        [
            # Python 3.12 and later warn of every fork of a process with threads, which is what is tested.
            *(sys.executable, "-X", "dev", "-W", "ignore:This process:DeprecationWarning"),
            *("-c", script),
        ],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def assert_silent_success(result: subprocess.CompletedProcess[str]) -> None:
    """Fail unless the script ended with 0 and printed nothing to stderr."""
    assert (result.returncode, result.stderr) == (0, ""), result.stdout + result.stderr
