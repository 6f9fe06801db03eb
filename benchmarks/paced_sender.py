"""Knows how to send passes at a rate, in a process of its own, to whoever subscribes next.

    python benchmarks/paced_sender.py

It prints its port. For each line ``COUNT PER_SECOND`` on stdin (a rate of 0 is as fast as it can) it prints
``joined`` when a subscriber is there, waits for another line, sends, and prints the seconds that it took.
Nothing is dropped on this side: what a reader does not take waits here, so that what a recorder loses is
lost by the recorder.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import count, islice

import zmq

from usual_payload import busy_payloads

DISTINCT = 1024
"""Few enough to stay in the processor's cache, and further apart than a compressor looks back."""
FIRST_COUNTER = 1 << 17  # from 2**16 on a counter takes five bytes
TICK_SECONDS = 0.002
BLOCK = 256


def numbered() -> Iterator[bytes]:
    """Yield payloads for ever, their counters consecutive."""
    key = b"\xaacounter_id"
    halves = []
    for payload in busy_payloads(DISTINCT + 300)[300:]:  # those from 256 on have counters of three bytes
        before, _, after = payload.partition(key)
        halves.append((before + key + b"\xce", after[3:]))
    for counter in count(FIRST_COUNTER):
        before, after = halves[counter % DISTINCT]
        yield before + counter.to_bytes(4, "big") + after


def wait_for_one(socket: zmq.Socket[bytes]) -> None:
    """Return when somebody is subscribed."""
    while True:
        event = socket.recv()[:1]
        if event == b"\x01":
            return


def send(socket: zmq.Socket[bytes], payloads: Iterator[bytes], wanted: int, per_second: float) -> float:
    """Send ``wanted`` messages; return the seconds from the first to the last."""
    begin, sent = time.monotonic(), 0
    while sent < wanted:
        due = int((time.monotonic() - begin) * per_second) + 1 if per_second else sent + BLOCK
        for payload in islice(payloads, max(0, min(due, wanted) - sent)):
            socket.send(b"", zmq.SNDMORE)
            socket.send(sent.to_bytes(8, "big"), zmq.SNDMORE)
            socket.send(payload)
            sent += 1
        if per_second:
            time.sleep(TICK_SECONDS)
    return time.monotonic() - begin


def main() -> None:
    """Serve one reader after another."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.XPUB)
    socket.setsockopt(zmq.SNDHWM, 0)
    print(socket.bind_to_random_port("tcp://127.0.0.1", 20_000, 32_000), flush=True)
    payloads = numbered()
    for line in sys.stdin:
        wanted, per_second = line.split()
        wait_for_one(socket)
        print("joined", flush=True)
        sys.stdin.readline()
        print(send(socket, payloads, int(wanted), float(per_second)), flush=True)


if __name__ == "__main__":
    main()
