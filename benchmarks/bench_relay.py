"""Knows what relaying one message costs this process, drained on a tick and awaited one by one.

The baseline is the loop that first comes to mind: await one multipart message, look at its sequence, offer
its payload, again. Ours is a whole relay group without a disk behind it. Counted is the CPU of this
process, the I/O thread of ZMQ included, from the first message to the last. The publisher is another
process that begins to send when it sees the subscription.

Flat out 20,000 messages are sent as fast as possible, by several ranks for the last comparison; at 200 a
second a message comes every 5 ms, as passes of a busy engine do. What the tick costs is precision: the
observed time is late by at most 20 ms.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import contextmanager
from typing import Any

import zmq
import zmq.asyncio

from forwardpass.relay.supervisor import RelayGroup, RelayTarget
from forwardpass.trace.ledger import LedgerEvent
from harness import Result, compare, run_script
from usual_payload import PAYLOAD

HWM = 100_000
LIMIT_SECONDS = 60.0
PUBLISHER = """
import sys, time, zmq
count, per_second, payload = int(sys.argv[1]), float(sys.argv[2]), bytes.fromhex(sys.argv[3])
sockets = [zmq.Context.instance().socket(zmq.XPUB) for _ in range(int(sys.argv[4]))]
for socket in sockets:
    socket.setsockopt(zmq.SNDHWM, 0)
print(*[socket.bind_to_random_port("tcp://127.0.0.1", 20_000, 32_000) for socket in sockets], flush=True)
while True:
    joined = 0
    while joined < len(sockets):
        joined += sum(socket.poll(5) != 0 and socket.recv() == b"\\x01" for socket in sockets)
    begin = time.monotonic()
    for number in range(count):
        for socket in sockets:
            socket.send_multipart((b"", number.to_bytes(8, "big"), payload))
        if per_second:
            time.sleep(max(0.0, begin + (number + 1) / per_second - time.monotonic()))
"""


class CountingTrace:
    """Stands for a trace that takes everything at once."""

    def __init__(self) -> None:
        self.offered = 0

    def offer(self, payload: bytes, observed_unix_ms: int) -> bool:
        """Take one payload."""
        self.offered += 1
        return True

    def offer_many(self, payloads: Sequence[bytes], observed_unix_ms: int | None = None) -> int:
        """Take many payloads."""
        self.offered += len(payloads)
        return len(payloads)

    def note(self, event: LedgerEvent) -> None:
        """Not of interest here."""

    def room(self) -> int:
        """There is always room."""
        return 1 << 30


async def await_each(urls: Sequence[str], count: int) -> float:
    """Receive ``count`` messages from each URL one by one; return the CPU seconds."""
    context = zmq.asyncio.Context.instance()
    trace = CountingTrace()

    async def read(url: str) -> None:
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, HWM)
        socket.subscribe(b"")
        socket.connect(url)
        last = gaps = 0
        for _ in range(count):
            _, seq, payload = await socket.recv_multipart()
            number = int.from_bytes(seq, "big")
            gaps += number != last + 1
            last = number
            trace.offer(payload, time.time_ns() // 1_000_000)
        socket.close(0)

    begin = time.process_time()
    await asyncio.gather(*(read(url) for url in urls))
    return time.process_time() - begin


async def drain_on_a_tick(urls: Sequence[str], count: int) -> float:
    """Receive ``count`` messages from each URL with a relay group; return the CPU seconds."""
    trace = CountingTrace()
    begin = time.process_time()
    group = RelayGroup([RelayTarget(url, rank) for rank, url in enumerate(urls)], trace=trace)
    await group.start()
    deadline = time.monotonic() + LIMIT_SECONDS
    while trace.offered < count * len(urls):
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {trace.offered} messages arrived")
        await asyncio.sleep(0.02)
    seconds = time.process_time() - begin
    await group.stop(0.0)
    return seconds


@contextmanager
def publishing(count: int, per_second: float, ranks: int) -> Any:
    """Run the publisher of ``ranks`` streams and yield their URLs."""
    arguments = [str(count), str(per_second), PAYLOAD.hex(), str(ranks)]
    process = subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield [f"tcp://127.0.0.1:{port}" for port in process.stdout.readline().split()]
    finally:
        process.kill()
        process.wait(10)


def bench(name: str, count: int, per_second: float, *, ranks: int, rounds: int, goal: float) -> Result:
    """Compare the two ways to receive ``count`` messages from each of ``ranks`` streams."""

    def way(receive: Callable[[Sequence[str], int], Coroutine[Any, Any, float]]) -> Callable[[], float]:
        return lambda: asyncio.run(receive(urls, count))

    with publishing(count, per_second, ranks) as urls:
        return compare(
            name,
            {"await each": way(await_each), "drain on a tick": way(drain_on_a_tick)},
            items=count * ranks,
            rounds=rounds,
            goal=goal,
        )


def main() -> list[Result]:
    """Run the comparisons."""
    return [
        bench("relay, flat out", 20_000, 0, ranks=1, rounds=9, goal=0.5),
        bench("relay, 200 a second", 400, 200, ranks=1, rounds=5, goal=0.56),
        bench("relay, 8 ranks, 100 a second each", 200, 100, ranks=8, rounds=5, goal=0.56),
    ]


if __name__ == "__main__":
    run_script(main, __doc__)
