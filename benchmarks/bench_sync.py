"""What it costs 2, 8 and 32 ranks to agree on one point (go and exchange), against an empty loop.

The empty loop sends as many messages of one byte through the same kinds of socket, in the same order, and
looks at none: what is left is encoding, checking and deciding. Each rank is a process; rank 0, in this one,
is timed. With more ranks than cores it is mostly the others' turn that is timed, in both ways.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from forwardpass.bench.sync.group import Group, Link
from forwardpass.bench.sync.zmq_link import connect_to_zero, listen_on_zero
from forwardpass.testing.ports import free_port
from harness import Result, from_rounds, is_quick, rounds_for, run_script

RANKS = (2, 8, 32)
ROUNDS = 15
POINTS = 20
"""Points that are timed together."""
LEGS = 6
"""Messages that a rank sends for one point, and gets."""
DIGEST = "ab" * 32
SUMMARY = {
    f"sum_{name}": 4096 for name in ("new", "prefill", "prefill_kv", "decode", "decode_kv", "requests")
}
FPM = {
    "version": 1,
    "worker_id": "4192",
    "counter_id": 1,
    "wall_time": 0.0061,
    "scheduled_requests": dict.fromkeys(("a", "b", "c", "d", "e", "f", "g"), 4096),
    "queued_requests": dict.fromkeys(("a", "b", "c", "d", "e", "f"), 0),
    "benchmark_measurement": {"prompt_hashes": [DIGEST] * 4, "reduction": "single", "samples": [0.0061]},
}
WAIT_SECONDS = 60.0


def agree(group: Group) -> None:
    """Agree on some points."""
    for number in range(1, POINTS + 1):
        group.go(number, DIGEST, SUMMARY)
        group.exchange(number, DIGEST, [{**FPM, "dp_rank": group.rank}], lambda: False)


def empty(link: Link, rank: int, size: int) -> None:
    """Send and receive as many messages as agreeing takes."""
    for _ in range(POINTS * LEGS):
        if rank:
            link.send(0, b"x")
        for _ in range(1 if rank else size - 1):
            if link.receive(WAIT_SECONDS) is None:
                raise TimeoutError("a rank of the benchmark is gone")
        if not rank:
            for other in range(1, size):
                link.send(other, b"x")


def ways(rank: int, size: int, link: Link) -> dict[str, Callable[[], None]]:
    """Return what is compared."""
    group = Group(rank, size, link)
    return {"empty loop": lambda: empty(link, rank, size), "go and exchange": lambda: agree(group)}


def take_part(rank: int, size: int, port: int, rounds: int) -> None:
    """Be one of the others, in the same order of ways as rank 0."""
    link = connect_to_zero("127.0.0.1", port, rank)
    mine = list(ways(rank, size, link).values())
    for number in range(rounds):
        for way in mine if number % 2 == 0 else reversed(mine):
            way()
    link.close(LEGS)


def others(size: int, port: int, rounds: int) -> None:
    """Fork the other ranks, and wait for them."""
    for rank in range(1, size):
        if os.fork() == 0:
            signal.alarm(300)
            take_part(rank, size, port, rounds)
            os._exit(0)
    for _ in range(1, size):
        os.wait()


def measure(size: int) -> Result:
    """Time both ways in turn; the first round, in which ranks connect, does not count."""
    rounds, port = rounds_for(ROUNDS), free_port()
    link = listen_on_zero("127.0.0.1", port)
    arguments = [
        sys.executable,
        str(Path(__file__).resolve()),
        "others",
        str(size),
        str(port),
        str(rounds + 1),
    ]
    child = subprocess.Popen(arguments)
    mine = ways(0, size, link)
    figures: dict[str, list[float]] = {label: [] for label in mine}
    try:
        for number in range(rounds + 1):
            for label, way in mine.items() if number % 2 == 0 else reversed(list(mine.items())):
                begin = time.perf_counter()
                way()
                if number:
                    figures[label].append((time.perf_counter() - begin) / POINTS * 1e6)
        child.wait(WAIT_SECONDS)
    finally:
        child.kill()
        child.wait()
        link.close(0.0)
    return from_rounds(f"one point, {size} ranks", figures)


def main() -> list[Result]:
    """Measure each number of ranks."""
    return [measure(size) for size in (RANKS[:1] if is_quick() else RANKS)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["others"]:
        others(*map(int, sys.argv[2:]))
    else:
        run_script(main)
