"""Knows how to take passes from an event plane in one of several ways, and count them, as a process.

    python benchmarks/plane_subscriber.py WAY URL

Prints ``ready``. A line ``workers`` on stdin is answered with how many different workers were heard of or are
shown, ``count`` with the messages that were no heartbeats, and the seconds between the first and the last;
``begin`` counts from 0 (and is answered too). ``plain`` is a bare socket on the plane that a folder of
discovery names, as fast as can be, to count what a relay publishes. Only Dynamo's ways need Dynamo. Written
against ai-dynamo 1.6.1.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from forwardpass.plane.blocking_subscriber import FpmSubscriber
from forwardpass.plane.subscriber import AsyncFpmSubscriber
from forwardpass.wire.key_scan import scan_key
from plane_publisher import ENDPOINT

NO_TIME = b"\xa9wall_time\xcb" + bytes(8)
"""What only a heartbeat has."""
LOOK_SECONDS = 0.1
"""How often the latest of everybody is asked for while it is tracked."""
BLOCK = 256


class Heard:
    """What was received so far."""

    def __init__(self) -> None:
        self.greeting = True
        self.workers: set[str] = set()
        self.count = 0
        self.first_at = self.last_at = 0.0

    def take(self, payload: bytes) -> None:
        """Take one payload."""
        if self.greeting:
            self.workers.add(scan_key(payload).worker_id)
        elif NO_TIME not in payload:
            self.count += 1

    def took(self, messages: int) -> None:
        """Take note of messages that were not looked at."""
        self.last_at = time.monotonic()
        if not self.count:
            self.first_at = self.last_at
        self.count += messages

    def begin(self) -> None:
        """Count from 0."""
        self.greeting, self.count = False, 0


def answer(heard: Heard, seen: Callable[[], int]) -> None:
    """Answer the lines of stdin until it ends."""
    for line in sys.stdin:
        if line == "begin\n":
            heard.begin()
        elif line == "workers\n":
            print(seen(), flush=True)
            continue
        print(heard.count, heard.last_at - heard.first_at, flush=True)
    os._exit(0)


def answering(heard: Heard, seen: Callable[[], int] | None = None) -> None:
    """Say that it has begun, and answer on another thread."""
    seen = seen or (lambda: len(heard.workers))
    threading.Thread(target=answer, args=(heard, seen), daemon=True).start()
    print("ready", flush=True)


async def dynamo(url: str, heard: Heard, *, track: bool) -> None:
    """Receive or track with Dynamo's subscriber, which reads its plane from the environment."""
    import dynamo._core as core

    runtime = core.DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    subscriber = core.FpmEventSubscriber(runtime.endpoint(str(ENDPOINT)))

    def receive() -> None:
        answering(heard)
        while (payload := subscriber.recv()) is not None:
            heard.take(payload)

    def look() -> None:
        subscriber.start_tracking()
        answering(heard, lambda: len(subscriber.get_recent_stats()))
        while True:
            subscriber.get_recent_stats()
            time.sleep(LOOK_SECONDS)

    await asyncio.to_thread(look if track else receive)


def blocking(url: str, heard: Heard) -> None:
    """Receive with our blocking subscriber."""
    with FpmSubscriber(url, ENDPOINT) as subscriber:
        answering(heard)
        while (payload := subscriber.recv()) is not None:
            heard.take(payload)


async def receiving(url: str, heard: Heard) -> None:
    """Receive with our asynchronous subscriber."""
    async with AsyncFpmSubscriber(url, ENDPOINT) as subscriber:
        answering(heard)
        while (payload := await subscriber.recv()) is not None:
            heard.take(payload)


def tracking(url: str, heard: Heard) -> None:
    """Track with ours; the count is that of all messages, heartbeats too."""
    with FpmSubscriber(url, ENDPOINT) as subscriber:
        subscriber.start_tracking()
        answering(heard, lambda: len(subscriber.get_recent_stats()))
        while True:
            subscriber.get_recent_stats()
            time.sleep(LOOK_SECONDS)


def address(folder: str) -> str:
    """Return where the publisher in discovery is bound, once there is one."""
    while True:
        for path in Path(folder, "v1", "event_channels").glob("*"):
            if text := path.read_text():
                return str(json.loads(text)["transport"]["config"]["endpoint"])
        time.sleep(LOOK_SECONDS)


def plain(url: str, heard: Heard) -> None:
    """Count what a bare socket gets, in blocks."""
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.subscribe(b"")
    events = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    socket.connect(address(os.environ["DYN_FILE_KV"]))
    events.recv_multipart()
    answering(heard)
    while True:
        socket.poll()
        frames = 0
        try:
            while frames < 4 * BLOCK:
                socket.recv(zmq.NOBLOCK)
                frames += 1
        except zmq.Again:
            pass
        heard.took(frames // 4)
        time.sleep(0.005)


def main(way: str, url: str) -> None:
    """Receive in one way until stdin ends."""
    heard = Heard()
    if way.startswith("Dynamo"):
        asyncio.run(dynamo(url, heard, track="track" in way))
    elif way == "plain":
        plain(url, heard)
    elif way == "forwardpass track":
        tracking(url, heard)
    elif way == "forwardpass":
        blocking(url, heard)
    else:
        asyncio.run(receiving(url, heard))


if __name__ == "__main__":
    main(*sys.argv[1:])
