"""Helpers of the relay's tests: plain PUB sockets, groups of relays, waiting."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import zmq

from forwardpass.relay.supervisor import RelayGroup, RelayTarget
from forwardpass.testing.ports import free_port
from forwardpass.trace.registry import TraceHandle
from forwardpass.wire.codec import encode
from forwardpass.wire.frames import join
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

LIMIT_SECONDS = 30.0


def free_url() -> str:
    """Return a loopback URL whose port is free and outside the ephemeral range."""
    return f"tcp://127.0.0.1:{free_port()}"


def message(counter: int, rank: int = 0, worker: str = "w") -> bytes:
    """Return the payload of one mixed pass."""
    return encode(
        ForwardPassMetrics(
            worker_id=worker,
            dp_rank=rank,
            counter_id=counter,
            wall_time=0.0125,
            scheduled_requests=ScheduledRequestMetrics(1, 100 + counter % 7, 0.0, 16, 3, 900, 6.25),
            queued_requests=QueuedRequestMetrics(2, 300, 2.5, 0, 0, 0.0),
        )
    )


class PlainPublisher:
    """A PUB socket of plain pyzmq, as any engine has one."""

    def __init__(self, url: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(url)
        self.seq = 0

    def send(self, payload: bytes) -> None:
        """Send one good message with the next sequence."""
        self._socket.send_multipart(join(self.seq, payload))
        self.seq += 1

    def send_passes(self, count: int, rank: int = 0) -> None:
        """Send ``count`` forward passes whose counters are their sequences."""
        for _ in range(count):
            self.send(message(self.seq, rank))

    def send_frames(self, *frames: bytes) -> None:
        """Send any frames as one message."""
        self._socket.send_multipart(frames)

    def close(self, linger_ms: int = 0) -> None:
        """Close socket and context."""
        self._socket.close(linger_ms)
        self._context.term()


@contextlib.contextmanager
def publishing_at(url: str) -> Iterator[PlainPublisher]:
    """Bind a publisher and close it again."""
    publisher = PlainPublisher(url)
    try:
        yield publisher
    finally:
        publisher.close()


@contextlib.asynccontextmanager
async def relaying(
    urls: Sequence[str], trace: TraceHandle | None = None, **options: Any
) -> AsyncIterator[RelayGroup]:
    """Run a group over ``urls`` (rank by position), and stop it if the test did not."""
    group = RelayGroup([RelayTarget(url, rank) for rank, url in enumerate(urls)], trace=trace, **options)
    await group.start()
    try:
        yield group
    finally:
        await group.stop(0.0)


async def until(condition: Callable[[], bool], what: str = "it") -> None:
    """Let the event loop run until ``condition`` holds, or fail."""
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in time"
        await asyncio.sleep(0.005)


async def until_connected(group: RelayGroup, publishers: Sequence[PlainPublisher]) -> None:
    """Send good messages until each of the group's first streams has one, and nothing is under way."""
    end = time.monotonic() + LIMIT_SECONDS
    while any(group.stats()[rank].received == 0 for rank in range(len(publishers))):
        assert time.monotonic() < end, "the subscription did not arrive"
        for rank, publisher in enumerate(publishers):
            publisher.send_passes(1, rank)
        await asyncio.sleep(0.02)
    last = [-1] * len(publishers)
    while last != (last := [stats.received for stats in group.stats()[: len(publishers)]]):
        await asyncio.sleep(0.1)
