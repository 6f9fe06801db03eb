"""Knows how to run a recorder against the paced sender once, and what that run cost.

A recorder is a process of its own that subscribes to a raw stream and writes a trace: NVIDIA Dynamo's relay
with its sink, or ``forwardpass record``. Its CPU is that of the whole process (all threads, user and
system), read by its clock from outside: from the moment before the first message, when it has started and
has been idle for a second, to the moment after the last byte reached its file. What stands in the files is
counted, not asked for.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from harness import is_quick

__all__ = [
    "DYNAMO",
    "LOOPBACK",
    "OFF",
    "OURS",
    "Load",
    "Outcome",
    "Sender",
    "cpu_seconds",
    "record_once",
    "sending",
]

FOLDER = Path(__file__).resolve().parent
DYNAMO, OURS = "Dynamo", "forwardpass"
SETTLE_SECONDS = 1.0
QUICK_SETTLE_SECONDS = 0.2
QUIET_SECONDS = 2.5
QUICK_QUIET_SECONDS = 1.5
"""Both flush every second: a file that has not grown for so long is complete."""
LATE_SECONDS = 0.2
"""What was sent last has been received after so long, also where nothing is written."""
POLL_SECONDS = 0.02
LIMIT_SECONDS = 120.0
SAMPLE_MS = 1000
OFF = "off"
LOST_ROWS = 4
"""Exit code of ``forwardpass record`` when rows were lost; what was lost is counted here anyway."""
LOOPBACK = ("DYN_TCP_RPC_HOST", "DYN_EVENT_PLANE_HOST", "DYN_TCP_RESPONSE_STREAM_HOST")


class Load(NamedTuple):
    """What is sent, and how it is to be recorded."""

    messages: int
    per_second: float
    """0: as fast as the sender can."""
    mode: str = "full"
    """``full``, ``sampled``, or ``off``: relayed only."""


class Outcome(NamedTuple):
    """What one run cost and gave."""

    cpu_seconds: float
    sent: int
    rows: int
    gzip_bytes: int
    per_second: float
    """As sent in truth."""

    @property
    def lost_percent(self) -> float:
        """Messages of full mode that are not in the files."""
        return 100 * (1 - self.rows / self.sent)


class Sender:
    """The process that sends."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = f"tcp://127.0.0.1:{int(self._line())}"

    def expect(self, load: Load) -> None:
        """Have it wait for a reader."""
        self._say(f"{load.messages} {load.per_second}")

    def joined(self, reader: subprocess.Popen[bytes]) -> None:
        """Return when ``reader`` is there."""
        while not select.select([self._process.stdout], [], [], POLL_SECONDS)[0]:
            if reader.poll() is not None:
                raise RuntimeError(f"the recorder ended with {reader.returncode} before it had subscribed")
        if self._line() != "joined":
            raise RuntimeError("the sender did not say that it has a reader")

    def send(self) -> float:
        """Have it send; return the seconds that it took."""
        self._say("go")
        return float(self._line())

    def _say(self, words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(words + "\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the sender has ended")
        return line.strip()


@contextmanager
def sending() -> Iterator[Sender]:
    """Run the sender for all the runs of a benchmark."""
    process = subprocess.Popen(
        [sys.executable, FOLDER / "paced_sender.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Sender(process)
    finally:
        process.kill()
        process.communicate(timeout=10)


def record_once(way: str, sender: Sender, load: Load) -> Outcome:
    """Run the recorder called ``way`` while ``load`` is sent to it."""
    with tempfile.TemporaryDirectory(prefix="fpm-bench-") as folder:
        sender.expect(load)
        with _recorder(way, sender.url, f"{folder}/fpm", load.mode) as process:
            sender.joined(process)
            time.sleep(QUICK_SETTLE_SECONDS if is_quick() else SETTLE_SECONDS)
            before = cpu_seconds(process.pid)
            seconds = sender.send()
            after = _cpu_when_written(process.pid, Path(folder))
        files = sorted(Path(folder).glob("*.jsonl.gz"))
        return Outcome(
            after - before,
            load.messages,
            sum(map(_rows, files)),
            sum(file.stat().st_size for file in files),
            load.messages / seconds,
        )


@contextmanager
def _recorder(way: str, url: str, prefix: str, mode: str) -> Iterator[subprocess.Popen[bytes]]:
    settings = {
        **({"DYN_FPM_TRACE": "0"} if mode == OFF else {"DYN_FPM_TRACE": "1", "DYN_FPM_MODE": mode}),
        "DYN_FPM_OUTPUT_PATH": prefix,
        "DYN_FPM_SAMPLE_INTERVAL_MS": str(SAMPLE_MS),
        "DYN_FPM_MAX_SEGMENTS": "64",
        **dict.fromkeys(LOOPBACK, "127.0.0.1"),
    }
    process = subprocess.Popen(
        _command(way, url, mode),
        env={**os.environ, **settings},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        _, words = process.communicate(timeout=60)
        if process.returncode not in (0, LOST_ROWS):
            raise RuntimeError(f"{way} ended with {process.returncode}: {words.decode()[-2000:]}")
    finally:
        process.kill()
        process.communicate(timeout=10)


def _command(way: str, url: str, mode: str) -> Sequence[str | Path]:
    if way == DYNAMO:
        return [sys.executable, FOLDER / "dynamo_relay.py", url]
    if mode == OFF:
        return [sys.executable, FOLDER / "our_relay.py", url]
    # As JSON, for then it does not read the files again to sum them up.
    return [sys.executable, "-m", "forwardpass", "record", url, "--json", "--quiet"]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of another process, all its threads, those that have ended too."""
    return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) returns on Linux


def _cpu_when_written(pid: int, folder: Path) -> float:
    """Return the process's CPU time when its files had just grown for the last time."""
    time.sleep(LATE_SECONDS)
    begin = grown_at = time.monotonic()
    cpu, size = cpu_seconds(pid), -1
    quiet_seconds = QUICK_QUIET_SECONDS if is_quick() else QUIET_SECONDS
    while (now := time.monotonic()) - grown_at < quiet_seconds:
        if now - begin > LIMIT_SECONDS:
            raise RuntimeError("the recorder does not come to an end")
        found = sum(file.stat().st_size for file in folder.glob("*.jsonl.gz"))
        if found != size:
            cpu, size, grown_at = cpu_seconds(pid), found, now
        time.sleep(POLL_SECONDS)
    return cpu


def _rows(path: Path) -> int:
    """Count the rows of a file of intact members."""
    rows, data = 0, path.read_bytes()
    while data:
        inflater = zlib.decompressobj(31)
        rows += inflater.decompress(data).count(b"\n")
        data = inflater.unused_data
    return rows
