"""Knows what one message costs on the raw stream's two ends, frame by frame and with the multipart helpers.

Both ways move the same bytes. Sending goes to a subscriber in another process that reads all the time;
receiving drains messages that have arrived already.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import zmq

from forwardpass.publish.zmq_pub import PubSocket
from forwardpass.relay.zmq_source import ZmqSource
from forwardpass.wire.frames import join, split
from harness import Result, from_rounds, rounds_for, run_script
from usual_payload import PAYLOAD

MESSAGES = 3000
ROUNDS = 15
HWM = 10 * MESSAGES
READER = """
import sys, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.setsockopt(zmq.RCVHWM, 0)
socket.subscribe(b"")
socket.connect(f"tcp://127.0.0.1:{sys.argv[1]}")
while True:
    socket.recv_multipart()
"""


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds of CPU that this thread spent in ``work``."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def send_frames(pub: PubSocket) -> None:
    """Send as the publisher does."""
    for seq in range(MESSAGES):
        if pub.send(seq, PAYLOAD) is not None:
            raise RuntimeError("the benchmark's socket refused a message")


def send_multipart(socket: zmq.Socket[bytes]) -> None:
    """Send with pyzmq's helper."""
    for seq in range(MESSAGES):
        socket.send_multipart(join(seq, PAYLOAD), zmq.NOBLOCK)


def bench_send(rounds: int) -> Result:
    """Compare the two ways to send."""
    ours = PubSocket("127.0.0.1", 0, send_hwm=HWM)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    theirs = context.socket(zmq.PUB)
    theirs.setsockopt(zmq.SNDHWM, HWM)
    ports = [ours.open(), theirs.bind_to_random_port("tcp://127.0.0.1", 20_000, 32_000)]
    readers = [subprocess.Popen([sys.executable, "-c", READER, str(port)]) for port in ports]
    try:
        time.sleep(1.0)  # both have subscribed
        ways: dict[str, Callable[[], None]] = {
            "send_multipart": lambda: send_multipart(theirs),
            "frame by frame": lambda: send_frames(ours),
        }
        return from_rounds("raw stream, send", measure(ways, rounds), unit="us CPU", goal=0.5)
    finally:
        for reader in readers:
            reader.kill()
            reader.wait(10)
        ours.close(0)
        theirs.close(0)
        context.term()


def receive_multipart(socket: zmq.Socket[bytes]) -> None:
    """Receive with pyzmq's helper, and check the frames."""
    for _ in range(MESSAGES):
        split(socket.recv_multipart())


def receive_frames(source: ZmqSource) -> None:
    """Receive as the relay does: all that is there."""
    got = 0
    while got < MESSAGES:
        got += sum(1 for _ in source.receive_many(256))


def bench_receive(rounds: int) -> Result:
    """Compare the two ways to receive."""
    pub = PubSocket("127.0.0.1", 0, send_hwm=HWM)
    url = f"tcp://127.0.0.1:{pub.open()}"
    ours = ZmqSource(url, receive_hwm=HWM)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    theirs = context.socket(zmq.SUB)
    theirs.setsockopt(zmq.RCVHWM, HWM)
    theirs.subscribe(b"")
    theirs.connect(url)
    try:
        time.sleep(1.0)  # both have subscribed

        def fill() -> None:
            send_frames(pub)
            time.sleep(0.2)  # all of it has arrived

        ways: dict[str, Callable[[], None]] = {
            "recv_multipart": lambda: receive_multipart(theirs),
            "frame by frame": lambda: receive_frames(ours),
        }
        return from_rounds("raw stream, receive", measure(ways, rounds, fill), unit="us CPU", goal=0.5)
    finally:
        ours.close()
        theirs.close(0)
        context.term()
        pub.close(0)


def measure(
    ways: dict[str, Callable[[], None]], rounds: int, before: Callable[[], None] | None = None
) -> dict[str, list[float]]:
    """Return the microseconds per message of each way, one figure per round after a first one to warm up."""
    figures: dict[str, list[float]] = {label: [] for label in ways}
    for number in range(rounds + 1):
        if before is not None:
            before()  # feeds both: every way of a round drains its own copy
        for label, way in list(ways.items()) if number % 2 == 0 else reversed(ways.items()):
            took = seconds(way) / MESSAGES * 1e6
            if number:
                figures[label].append(took)
            time.sleep(0.05)  # ZMQ's own threads and the readers catch up
    return figures


def main() -> list[Result]:
    """Compare both ends."""
    rounds = rounds_for(ROUNDS)
    return [bench_send(rounds), bench_receive(rounds)]


if __name__ == "__main__":
    run_script(main, __doc__)
