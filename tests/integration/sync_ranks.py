"""Runs groups of ranks, each rank a process with a real socket, and says how each ended.

``python sync_ranks.py`` reads a JSON list of scenarios from stdin and writes a list of their ends. Ranks are
forked from here, before any socket is opened, so that hundreds of them start in a second.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from forwardpass.bench.limits import CapacityEnvelope
from forwardpass.bench.sync import messages as m
from forwardpass.bench.sync.group import Group, Link
from forwardpass.bench.sync.rounds import Legs
from forwardpass.bench.sync.zmq_link import connect_to_zero, listen_on_zero
from forwardpass.errors import SyncError

DIGEST = "ab" * 32
POINTS = (1, 2)
AT_ONCE = 23
"""Groups that run side by side: they mostly wait."""
LONGEST_SECONDS = 40


class Scenario(msgspec.Struct):
    """A group of ranks, and what goes wrong with one of them."""

    name: str
    size: int
    port: int
    legs: Legs
    hurt: int = -1
    """Which rank gets ``signal``: when it is about to send, or has received, the message ``at``."""
    at: str = ""
    sent_before: int = 0
    """How many times it has sent that message before."""
    signal: str = ""
    differs: int = -1
    """Which rank has another grid."""
    stops: int = -1
    """Which rank wants to stop from the first point on, though it says so only late."""


class HurtLink:
    """A link whose process gets a signal at some message."""

    def __init__(self, link: Link, scenario: Scenario) -> None:
        self.link = link
        self.scenario = scenario
        self.left = scenario.sent_before

    def _meet(self, payload: bytes) -> None:
        if json.loads(payload)["type"] == self.scenario.at:
            if self.left == 0:
                os.kill(os.getpid(), getattr(signal, self.scenario.signal))
                # Another thread (libzmq's) may be the one that takes it in; until then nothing may be sent.
                time.sleep(60)
            self.left -= 1

    def send(self, rank: int, payload: bytes) -> bool:
        self._meet(payload)
        return self.link.send(rank, payload)

    def receive(self, seconds: float) -> tuple[bytes, Sequence[bytes]] | None:
        got = self.link.receive(seconds)
        if got is not None:
            self._meet(got[1][0])
        return got

    def close(self, linger_seconds: float) -> None:
        self.link.close(linger_seconds)


def run(group: Group, scenario: Scenario, done: list[Any]) -> None:
    """Go through a short run, noting every decision."""
    rank, reached = group.rank, [0]

    def stop() -> bool:
        reached[0] += 1
        return rank == scenario.stops and reached[0] > 1  # only when it is asked again

    envelope = CapacityEnvelope(1000 + rank, 256, 16, 500, 400 - rank, DIGEST, True)
    done.append(group.agree_capacity(envelope))
    group.agree_grid(DIGEST if rank != scenario.differs else "cd" * 32, len(POINTS), ["decode"])
    done.append("grid")
    done.append(group.stage(1, 8, m.StagePhase.DONE, rank != 1))
    for point in POINTS:
        done.append(group.boundary(point, stop))
        if done[-1]:
            break
        done.append(group.go(point, DIGEST, {"sum_prefill_tokens": 7}))
        done.append(group.exchange(point, DIGEST, [{"wall_time": rank + 0.25}], lambda: False))
    group.cleanup()
    done.append("cleanup")


def take_part(rank: int, scenario: Scenario) -> dict[str, Any]:
    """Be one rank from start to end."""
    signal.alarm(LONGEST_SECONDS)
    open_link = listen_on_zero if rank == 0 else lambda host, port: connect_to_zero(host, port, rank)
    link: Link = open_link("127.0.0.1", scenario.port)
    if rank == scenario.hurt and scenario.signal:
        link = HurtLink(link, scenario)
    done: list[Any] = []
    end: dict[str, Any] = {"rank": rank, "error": None, "round": None, "names": [], "text": ""}
    begin = time.monotonic()
    with Group(rank, scenario.size, link, legs=scenario.legs) as group:
        try:
            run(group, scenario, done)
        except SyncError as error:
            end |= {"error": type(error).__name__, "round": error.round, "text": str(error)}
            end["names"] = list(getattr(error, "missing", ())) or [error.rank]  # type: ignore[attr-defined]
    return {**end, "seconds": time.monotonic() - begin, "done": json.loads(msgspec.json.encode(done))}


def in_child(work: Callable[[], Any]) -> tuple[int, int]:
    """Fork; return the child's pid and where its JSON comes from."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    status = 1
    try:
        os.close(reading)
        with os.fdopen(writing, "wb") as out:
            out.write(json.dumps(work()).encode())
        status = 0
    finally:
        os._exit(status)


def end_of(child: tuple[int, int]) -> Any:
    """Wait for a child; return what it wrote, or ``None`` if it was killed."""
    with os.fdopen(child[1], "rb") as reading:
        text = reading.read()
    os.waitpid(child[0], 0)
    return json.loads(text) if text else None


def play(scenario: Scenario) -> list[Any]:
    """Run the ranks of one group; return each one's end, ``None`` for one that was killed."""
    ranks = {
        rank: in_child(lambda rank=rank: take_part(rank, scenario))  # type: ignore[misc]
        for rank in range(scenario.size)
    }
    stopped = scenario.hurt if scenario.signal == "SIGSTOP" else -1
    ends = {rank: end_of(child) for rank, child in ranks.items() if rank != stopped}
    if stopped >= 0:
        os.kill(ranks[stopped][0], signal.SIGKILL)
        ends[stopped] = end_of(ranks[stopped])
    return [ends[rank] for rank in sorted(ends)]


def main() -> None:
    """Play all scenarios, some at once, and write how they ended."""
    scenarios = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Scenario])
    running: list[tuple[str, tuple[int, int]]] = []
    ends: dict[str, Any] = {}
    for scenario in scenarios:
        if len(running) == AT_ONCE:
            name, child = running.pop(0)
            ends[name] = end_of(child)
        running.append((scenario.name, in_child(lambda scenario=scenario: play(scenario))))  # type: ignore[misc]
    ends |= {name: end_of(child) for name, child in running}
    sys.stdout.write(json.dumps(ends))


if __name__ == "__main__":
    main()
