"""Dynamo's own runtime and our NATS plane read each other, without any discovery between them."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forwardpass.config.settings import Sources
from forwardpass.plane import nats
from forwardpass.plane.base import PlaneContext
from forwardpass.testing.nats_server import NatsServer, find_nats_server, nats_server
from forwardpass.wire.codec import decode_strict, encode
from forwardpass.wire.keys import Endpoint
from forwardpass.wire.schema import ForwardPassMetrics, ScheduledRequestMetrics

pytestmark = [
    pytest.mark.skipif(find_nats_server() is None, reason="nats-server is not installed"),
    pytest.mark.skipif(importlib.util.find_spec("nats") is None, reason="nats-py is not installed"),
    pytest.mark.skipif(
        importlib.util.find_spec("dynamo") is None, reason="ai-dynamo-runtime is not installed"
    ),
]
HERE = Endpoint("interop", "back-end", "gen_1")
PASSES = 40

# The runtime's objects block and keep threads, so that each program is ended from outside.
RUNTIME = """
import asyncio, sys, time
from dynamo._core import DistributedRuntime, FpmDirectPublisher, FpmEventSubscriber

async def main():
    runtime = DistributedRuntime(asyncio.get_running_loop(), "mem", "tcp")
    endpoint = runtime.endpoint("interop.back-end.gen_1")
    await peer(endpoint)
"""
PUBLISHES = (
    RUNTIME
    + """
async def peer(endpoint):
    publisher = FpmDirectPublisher(endpoint, worker_id="real", dp_size=2)
    print("up", flush=True)
    sys.stdin.readline()
    for number in range(40):
        publisher.publish(
            dp_rank=number % 2, scheduled_num_prefill_requests=1, scheduled_sum_prefill_tokens=100 + number,
            scheduled_sum_prefill_kv_tokens=0, scheduled_num_decode_requests=2,
            scheduled_sum_decode_kv_tokens=300, queued_num_prefill_requests=0, queued_sum_prefill_tokens=0,
            queued_num_decode_requests=0, queued_sum_decode_kv_tokens=0, wall_time_secs=0.25)
    time.sleep(60)

asyncio.run(main())
"""
)
RECEIVES = (
    RUNTIME
    + """
async def peer(endpoint):
    subscriber = FpmEventSubscriber(endpoint)
    print("up", flush=True)
    for _ in range(40):
        print(subscriber.recv().hex(), flush=True)
    time.sleep(60)

asyncio.run(main())
"""
)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """Run one server for both directions."""
    with nats_server() as running:
        yield running


class Peer:
    """A program of the runtime in a process of its own."""

    def __init__(self, program: str, server: NatsServer, folder: Path) -> None:
        environment = {
            **os.environ,
            "DYN_EVENT_PLANE": "nats",
            "NATS_SERVER": server.url,
            "DYN_FILE_KV": str(folder / "kv"),
        }
        with (folder / "stderr").open("wb") as words:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
            )
        self._folder = folder

    def line(self) -> str:
        """Return the next line that it wrote."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, (self._folder / "stderr").read_text()
        return line

    def go(self) -> None:
        """Let it begin."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Kill it and close its pipes."""
        self.process.kill()
        self.process.communicate()


def test_their_publisher_and_our_subscriber(server: NatsServer, tmp_path: Path) -> None:
    """NATS-02: What the runtime's direct publisher sends over NATS arrives whole and in order."""

    async def run() -> None:
        subscriber = await nats.open_subscriber(server.url, HERE, PlaneContext(Sources({})))
        peer = Peer(PUBLISHES, server, tmp_path)
        try:
            await asyncio.to_thread(peer.line)
            peer.go()
            received = []
            async with asyncio.timeout(60):
                async for message in subscriber:
                    metrics = decode_strict(message.payload)
                    if metrics.wall_time:  # its heartbeats have none
                        received.append((message, metrics))
                    if len(received) == PASSES:
                        break
        finally:
            peer.end()
            await subscriber.close()
        tokens = [metrics.scheduled_requests.sum_prefill_tokens for _, metrics in received]
        assert sorted(tokens) == list(range(100, 100 + PASSES))
        assert {metrics.worker_id for _, metrics in received} == {"real"}
        assert len({message.publisher_id for message, _ in received}) == 1
        sequences = [message.sequence for message, _ in received]
        assert sequences == sorted(set(sequences))

    asyncio.run(run())


def test_our_publisher_and_their_subscriber(server: NatsServer, tmp_path: Path) -> None:
    """NATS-02: The runtime's subscriber gives back what we publish, bit for bit and in order."""
    payloads = [
        encode(
            ForwardPassMetrics(
                worker_id="ours",
                counter_id=number,
                wall_time=0.5,
                scheduled_requests=ScheduledRequestMetrics(sum_prefill_tokens=number),
            )
        )
        for number in range(PASSES)
    ]

    async def run() -> list[bytes]:
        publisher = await nats.open_publisher(server.url, HERE, PlaneContext(Sources({})))
        peer = Peer(RECEIVES, server, tmp_path)
        try:
            await asyncio.to_thread(peer.line)
            first = asyncio.ensure_future(asyncio.to_thread(peer.line))
            while not first.done():  # its subscription begins with the first recv()
                await publisher.publish(b"not yet")
                await asyncio.wait([first], timeout=0.05)
            for payload in payloads:
                await publisher.publish(payload)
            received = [bytes.fromhex(await first)]
            async with asyncio.timeout(60):
                while payloads[0] not in received or len(received) < PASSES:
                    line = await asyncio.to_thread(peer.line)
                    received.append(bytes.fromhex(line))
            return received
        finally:
            peer.end()
            await publisher.close()

    received = asyncio.run(run())
    ours = [payload for payload in received if payload != b"not yet"]

    assert ours == payloads[: len(ours)]
    assert len(ours) > PASSES // 2
