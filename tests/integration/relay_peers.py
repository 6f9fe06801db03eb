"""Helpers of the relay's tests: plain PUB sockets, groups of relays, waiting."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import zmq
from trace_files import PRODUCER, trace_settings

from forwardpass.config.settings import CaptureMode
from forwardpass.plane import memory
from forwardpass.plane.base import PlaneContext, PlaneSubscriber
from forwardpass.relay.supervisor import RelayGroup, RelayTarget
from forwardpass.testing.ports import free_port
from forwardpass.trace.registry import TraceHandle, TraceRegistry
from forwardpass.wire.codec import encode
from forwardpass.wire.frames import join
from forwardpass.wire.keys import Endpoint
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

LIMIT_SECONDS = 30.0
ENDPOINT = Endpoint("ns", "part", "gen")
_names = itertools.count()


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
    targets = [RelayTarget(url, rank) for rank, url in enumerate(urls)]
    group = RelayGroup(targets, **{"trace": trace, "endpoint": ENDPOINT, **options})
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


@contextlib.contextmanager
def tracing(folder: Path, mode: CaptureMode = CaptureMode.FULL) -> Iterator[TraceHandle]:
    """Open a real trace below ``folder`` and close it."""
    registry = TraceRegistry(trace_settings(folder, mode=mode))
    handle = registry.acquire(PRODUCER, ENDPOINT)
    assert handle is not None
    try:
        yield handle
    finally:
        handle.release(LIMIT_SECONDS)


async def subscribe() -> tuple[str, PlaneSubscriber]:
    """Return the URL of a fresh plane in this process and a subscriber to it."""
    url = f"memory:relay-{next(_names)}"
    return url, await memory.open_subscriber(url, ENDPOINT, PlaneContext())


@contextlib.asynccontextmanager
async def one_stream(
    trace: TraceHandle | None = None, **options: Any
) -> AsyncIterator[tuple[RelayGroup, PlainPublisher]]:
    """Relay one stream, connected, with nothing under way."""
    url = free_url()
    with publishing_at(url) as publisher:
        async with relaying([url], trace, **options) as group:
            await until_connected(group, [publisher])
            yield group, publisher


async def until_more(group: RelayGroup, publisher: PlainPublisher, before: int) -> None:
    """Send passes until the group's first stream has received more than ``before``."""
    end = time.monotonic() + LIMIT_SECONDS
    while group.stats()[0].received == before:
        assert time.monotonic() < end, "nothing more was received"
        publisher.send_passes(1)
        await asyncio.sleep(0.02)


async def take_all(subscriber: PlaneSubscriber) -> list[bytes]:
    """Close the subscriber and return what it had got."""
    await subscriber.close()
    return [one.payload async for one in subscriber]
