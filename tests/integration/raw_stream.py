"""Helpers of the raw stream's tests: a plain subscriber, publishers on free ports, other processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import zmq

from forwardpass.config.settings import PublisherSettings
from forwardpass.publish.publisher import FpmPublisher, Publisher
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.frames import Frames, split
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

LIMIT_SECONDS = 30.0
SILENT = 300.0  # a heartbeat interval that no test reaches
QUEUE = QueuedRequestMetrics(num_prefill_requests=3, sum_prefill_tokens=90)


class Reader:
    """A plain subscriber."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", small: bool = False) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.SUB)
        if small:
            self.socket.setsockopt(zmq.RCVHWM, 1)
            self.socket.setsockopt(zmq.RCVBUF, 4096)
        self.socket.subscribe(b"")
        self.socket.connect(f"tcp://{host}:{port}")

    def read(self, limit_seconds: float = LIMIT_SECONDS) -> Frames | None:
        """Return the next message, or None if none comes in time."""
        if not self.socket.poll(int(limit_seconds * 1000)):
            return None
        return split(self.socket.recv_multipart())

    def read_pass(self) -> tuple[int, ForwardPassMetrics]:
        """Return the next message's sequence and content."""
        frames = self.read()
        assert frames is not None, "nothing came"
        return frames.seq, decode_strict(frames.payload)

    def close(self) -> None:
        self.socket.close(linger=0)
        self._context.term()


@contextlib.contextmanager
def reading(port: int | None, **options: bool) -> Iterator[Reader]:
    """Connect a reader and close it again."""
    assert port is not None
    reader = Reader(port, **options)
    try:
        yield reader
    finally:
        reader.close()


@contextlib.contextmanager
def publishing(**settings: object) -> Iterator[FpmPublisher]:
    """Open a publisher of rank 0 on a free port, without heartbeats unless asked for."""
    chosen = {"base_port": 0, "worker_id": "77", "heartbeat_interval_seconds": SILENT, **settings}
    publisher = FpmPublisher(PublisherSettings(**chosen), dp_rank=0)  # type: ignore[arg-type]
    try:
        yield publisher
    finally:
        publisher.shutdown(5)


def one_pass(number: int = 1) -> ForwardPassMetrics:
    """Return a forward pass that can be told from others."""
    return ForwardPassMetrics(
        wall_time=0.01, scheduled_requests=ScheduledRequestMetrics(num_decode_requests=number)
    )


def join(publisher: Publisher, reader: Reader) -> int:
    """Publish until the reader's subscription has arrived, read everything, return the next sequence."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        publisher.publish(one_pass())
        frames = reader.read(0.02)
        if frames is None:
            continue
        last = publisher.counts().offered - 1
        while frames.seq < last:
            frames = reader.read()
            assert frames is not None
        return last + 1
    raise AssertionError("the subscription did not arrive")


@contextlib.contextmanager
def other_process_on(port: int, host: str = "127.0.0.1") -> Iterator[subprocess.Popen[str]]:
    """Let another process listen at ``port``."""
    script = (
        "import socket, sys, time; s = socket.socket(); "
        f"s.bind(({host!r}, {port})); s.listen(); print('ready', flush=True); time.sleep(120)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def run_script(body: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``body`` in a fresh interpreter that shows every warning."""
    return subprocess.run(
        [
            *(sys.executable, "-X", "dev", "-W", "ignore:This process:DeprecationWarning"),
            *("-c", textwrap.dedent(body), *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
