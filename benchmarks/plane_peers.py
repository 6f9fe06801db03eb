"""Knows how to run the ends of an event plane as processes, and what one of them took meanwhile.

The CPU of a process is that of all its threads, read by its clock from outside, from when everybody is
joined and quiet to when nothing has arrived for a while. Everything is on loopback, found through a folder.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from harness import is_quick
from recorders import DYNAMO, LOOPBACK, Load, Sender, cpu_seconds

__all__ = ["ASYNC", "Outcome", "Plane", "file_plane", "publishing", "relayed_once", "subscribed_once"]

FOLDER = Path(__file__).resolve().parent
ASYNC = "forwardpass, asyncio"
START_SECONDS = 40.0
SETTLE_SECONDS = 0.5
QUIET_SECONDS = 0.4
POLL_SECONDS = 0.1


class Plane(NamedTuple):
    """Which plane: our URL of it, and Dynamo's variables."""

    url: str
    variables: Mapping[str, str]


class Outcome(NamedTuple):
    """What one process took for the events that it was sent."""

    cpu_seconds: float
    sent: int
    arrived: int | None
    """``None`` where it does not say."""
    per_second: float
    memory_mib: float

    @property
    def cpu_us(self) -> float:
        """CPU per event that arrived, in microseconds."""
        return 1e6 * self.cpu_seconds / max(1, self.sent if self.arrived is None else self.arrived)

    @property
    def lost_percent(self) -> float:
        """Of what was sent; 0 where it is not known."""
        return 0.0 if self.arrived is None else 100 * (1 - self.arrived / self.sent)


class Peer:
    """A process that answers lines."""

    def __init__(self, script: str, *words: str, env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, FOLDER / script, *words],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if is_quick() else subprocess.DEVNULL,
            text=True,
        )

    @property
    def pid(self) -> int:
        """The process."""
        return self.process.pid

    def ask(self, words: str, seconds: float = START_SECONDS) -> str:
        """Send a line and return the answer."""
        self.say(words)
        return self.line(seconds)

    def say(self, words: str) -> None:
        """Send a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def line(self, seconds: float = START_SECONDS) -> str:
        """Return the next line."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            raise TimeoutError(f"no answer from {self.process.args!r}")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} has ended")
        return line.strip()

    def counted(self) -> tuple[int, float]:
        """Return how many messages arrived, and in how many seconds."""
        count, seconds = self.ask("count").split()
        return int(count), float(seconds)

    def end(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate(timeout=10)


@contextmanager
def peer(script: str, *words: str, env: Mapping[str, str]) -> Iterator[Peer]:
    """Run a process until the end of the block."""
    running = Peer(script, *words, env=env)
    try:
        yield running
    finally:
        running.end()


@contextmanager
def file_plane() -> Iterator[Plane]:
    """Yield a ZMQ plane with a folder for its discovery."""
    with tempfile.TemporaryDirectory(prefix="fpm-plane-") as folder:
        yield Plane(
            f"zmq+file:{folder}",
            {
                "DYN_FILE_KV": folder,
                "DYN_DISCOVERY_BACKEND": "file",
                "DYN_EVENT_PLANE": "zmq",
                "DYN_FPM_TRACE": "0",
                **dict.fromkeys(LOOPBACK, "127.0.0.1"),
            },
        )


def memory_mib(pid: int) -> float:
    """Return the memory of another process (``VmRSS``)."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def relayed_once(way: str, sender: Sender, load: Load) -> Outcome:
    """Let the relay called ``way`` relay ``load`` to one bare subscriber."""
    with ExitStack() as stack:
        plane = stack.enter_context(file_plane())
        sender.expect(load)
        script = "dynamo_relay.py" if way == DYNAMO else "our_relay.py"
        plane_name = "file" if way == DYNAMO else plane.url
        relay = stack.enter_context(peer(script, sender.url, plane_name, env=plane.variables))
        sender.joined(relay.process)
        reader = stack.enter_context(peer("plane_subscriber.py", "plain", plane.url, env=plane.variables))
        reader.line()
        time.sleep(SETTLE_SECONDS)
        reader.ask("begin")
        before = cpu_seconds(relay.pid)
        sender.send()
        count, seconds = when_quiet(reader)
        took = cpu_seconds(relay.pid) - before
        return Outcome(took, load.messages, count, count / max(seconds, 1e-9), memory_mib(relay.pid))


def when_quiet(reader: Peer) -> tuple[int, float]:
    """Return the counts once nothing has arrived for a while."""
    last, changed_at = reader.counted(), time.monotonic()
    while time.monotonic() - changed_at < QUIET_SECONDS:
        time.sleep(POLL_SECONDS)
        if (now := reader.counted()) != last:
            last, changed_at = now, time.monotonic()
    return last


@contextmanager
def publishing(way: str, count: int, plane: Plane) -> Iterator[Peer]:
    """Run ``count`` publishers, of ours or of Dynamo's, in one process."""
    with peer("plane_publisher.py", way, plane.url, str(count), env=plane.variables) as running:
        running.line()
        yield running


def subscribed_once(way: str, publisher: Peer, count: int, plane: Plane, load: Load) -> Outcome:
    """Let the subscriber called ``way`` take ``load`` from ``count`` publishers."""
    track = "track" in way
    with peer("plane_subscriber.py", way, plane.url, env=plane.variables) as reader:
        reader.line()
        publisher.say("greet")
        until = time.monotonic() + START_SECONDS
        while int(reader.ask("workers")) < count:
            if time.monotonic() > until:
                raise TimeoutError(f"{way} does not hear all of {count} publishers")
            time.sleep(POLL_SECONDS)
        publisher.ask("0 1")
        time.sleep(SETTLE_SECONDS)
        reader.ask("begin")
        before = cpu_seconds(reader.pid)
        seconds = float(publisher.ask(f"{load.messages} {load.per_second}"))
        if track:
            time.sleep(QUIET_SECONDS)
        arrived = None if track else when_quiet(reader)[0]
        took = cpu_seconds(reader.pid) - before
        return Outcome(took, load.messages, arrived, load.messages / seconds, memory_mib(reader.pid))
