"""Dynamo's own runtime and ours on one ZMQ event plane that is found through a folder."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgpack
import pytest
from dynamo_zmq_peer import INSTALLED, PATIENCE_SECONDS, Peer

from forwardpass.config.settings import Sources
from forwardpass.plane.base import PlaneContext, PlaneMessage
from forwardpass.plane.discovery.base import EVENT_CHANNELS, MODEL_CARDS
from forwardpass.plane.discovery.cards import register_worker, watch_workers
from forwardpass.plane.urls import open_publisher, open_subscriber
from forwardpass.testing.ports import free_port
from forwardpass.wire.codec import decode_strict, encode
from forwardpass.wire.keys import Endpoint
from forwardpass.wire.schema import ForwardPassMetrics, ScheduledRequestMetrics

pytestmark = pytest.mark.skipif(not INSTALLED, reason="needs ai-dynamo-runtime")

ENDPOINT = Endpoint("my ns", "back-end", "gen_1")
BUSY = 777


def payload(worker_id: str, counter_id: int) -> bytes:
    """Return a message that is no heartbeat."""
    scheduled = ScheduledRequestMetrics(num_decode_requests=1, sum_decode_kv_tokens=BUSY)
    return encode(ForwardPassMetrics(1, worker_id, 0, counter_id, 0.25, scheduled))


def is_busy(data: bytes) -> bool:
    """Say whether a message is no heartbeat."""
    return decode_strict(data).scheduled_requests.sum_decode_kv_tokens == BUSY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of discovery."""
    return tmp_path / "kv"


@pytest.fixture
def context(folder: Path) -> PlaneContext:
    """Return what a plane of ours is opened with: Dynamo's variables."""
    return PlaneContext(sources=Sources(environment(folder)))


def environment(folder: Path) -> dict[str, str]:
    """Return the variables that both sides are given."""
    return {
        "DYN_FILE_KV": str(folder),
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_EVENT_PLANE_HOST": "127.0.0.1",
    }


def peer(folder: Path, role: str, *arguments: str) -> Peer:
    """Return Dynamo's end of the plane."""
    return Peer("file", role, *arguments, env=environment(folder), endpoint=str(ENDPOINT))


def records(folder: Path, bucket: str = EVENT_CHANNELS) -> list[Path]:
    """Return the files of a bucket."""
    return sorted(path for path in (folder / bucket).glob("*") if not path.name.startswith(".tmp_"))


async def until(reached: Callable[[], Awaitable[bool]] | Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        answer = reached()
        if answer if isinstance(answer, bool) else await answer:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"did not happen: {what}")


def test_their_publisher_reaches_our_subscriber(folder: Path, context: PlaneContext) -> None:
    """PLANE-10, PLANE-11: What Dynamo's publisher sends arrives here as it was, found by the record it wrote,
    and its record goes when it leaves.
    """

    async def run() -> list[PlaneMessage]:
        with peer(folder, "publish", "w7", "2") as theirs:
            subscriber = await open_subscriber("zmq:", ENDPOINT, context=context)
            messages = aiter(subscriber)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await anext(messages)  # a heartbeat: the connection is there
                for count in range(3):
                    words = {
                        "dp_rank": 1,
                        "scheduled_sum_decode_kv_tokens": BUSY,
                        "wall_time_secs": count + 1,
                    }
                    await asyncio.to_thread(lambda words=words: theirs.ask(**words))
                received: list[PlaneMessage] = []
                while len(received) < 3:
                    message = await anext(messages)
                    received += [message] if is_busy(message.payload) else []
            assert len(records(folder)) == 1
            await asyncio.to_thread(theirs.leave)
            await until(lambda: records(folder) == [], "their record goes")
            await subscriber.close()
        return received

    received = asyncio.run(run())
    assert [decode_strict(message.payload).wall_time for message in received] == [1.0, 2.0, 3.0]
    assert {decode_strict(message.payload).worker_id for message in received} == {"w7"}
    assert len({message.publisher_id for message in received}) == 1
    assert {message.endpoint for message in received} == {ENDPOINT}


def test_our_publisher_reaches_their_subscriber(folder: Path, context: PlaneContext) -> None:
    """PLANE-10, PLANE-12: Dynamo's subscriber finds our record, also one that comes later, and receives what
    we publish bit for bit.
    """

    async def run() -> None:
        first = await open_publisher("zmq:", ENDPOINT, context=context)
        with peer(folder, "receive") as theirs:
            sent = [payload("1", number) for number in range(2)]
            await arrives(theirs, first.publish, sent[0])
            second = await open_publisher("zmq:", ENDPOINT, context=context)
            await arrives(theirs, second.publish, sent[1])
            await first.close()
            await second.close()
            assert records(folder) == []

    asyncio.run(run())


async def arrives(theirs: Peer, publish: Callable[[bytes], Awaitable[None]], data: bytes) -> None:
    """Publish ``data`` until the peer prints it: what is sent before it is connected is lost."""

    async def again() -> None:
        while True:
            await publish(data)
            await asyncio.sleep(0.1)

    repeating = asyncio.create_task(again())
    try:
        found = await asyncio.to_thread(theirs.payloads, lambda one: one == data, 1)
    finally:
        repeating.cancel()
    assert found == [data]


def test_a_record_nobody_touches_expires_at_the_peers(folder: Path, context: PlaneContext) -> None:
    """PLANE-14: A record whose owner died is deleted by whoever sees it: ours by Dynamo's programs, theirs
    by ours.
    """

    async def run() -> None:
        ours = await open_publisher("zmq:", ENDPOINT, context=context)
        [record] = records(folder)
        orphan = record.with_name(record.name[:-1] + "z0")
        orphan.write_bytes(record.read_bytes())
        with peer(folder, "receive") as theirs:
            await arrives(theirs, ours.publish, payload("1", 0))
            os.utime(orphan, (time.time() - 11, time.time() - 11))
            await until(lambda: not orphan.exists(), "Dynamo's program deletes a record that nobody touched")
        with peer(folder, "publish", "w1", "1"):
            theirs_alive = [path for path in records(folder) if path != record]
            assert len(theirs_alive) == 1
        orphan.write_bytes(record.read_bytes())
        os.utime(orphan, (time.time() - 11, time.time() - 11))
        subscriber = await open_subscriber("zmq:", ENDPOINT, context=context)
        await until(lambda: not orphan.exists(), "our subscriber deletes a record that nobody touched")
        assert records(folder) == [record]
        await subscriber.close()
        await ours.close()

    asyncio.run(run())


def test_model_cards_make_our_worker_known(folder: Path, context: PlaneContext) -> None:
    """PLANE-16, PLANE-17: Dynamo's tracker shows our worker while the card that was asked for is there, and
    our watch sees the same.
    """

    async def run() -> None:
        publisher = await open_publisher("zmq:", ENDPOINT, context=context)
        watch = await watch_workers(ENDPOINT, context)
        events = aiter(watch)
        with peer(folder, "track") as theirs:

            async def stats() -> list[list[object]]:
                await publisher.publish(payload("4711", 1))
                return list((await asyncio.to_thread(theirs.ask))["stats"])

            assert await stats() == []
            card = await register_worker(ENDPOINT, "4711", context, display_name="tiny")

            async def is_known() -> bool:
                return await stats() == [["4711", 0, payload("4711", 1).hex()]]

            async def is_unknown() -> bool:
                return await stats() == []

            await until(is_known, "the worker is known")
            cards = (await asyncio.to_thread(theirs.ask))["cards"]
            assert json.loads(cards["4711"])["display_name"] == "tiny"
            async with asyncio.timeout(PATIENCE_SECONDS):
                event = await anext(events)
            assert (event.worker_id, json.loads(event.card or "")["display_name"]) == ("4711", "tiny")
            await card.close()
            await until(is_unknown, "the worker is forgotten")
        async with asyncio.timeout(PATIENCE_SECONDS):
            event = await anext(events)
        assert (event.worker_id, event.card) == ("4711", None)
        assert records(folder, MODEL_CARDS) == []
        await watch.close()
        await publisher.close()

    asyncio.run(run())


def test_their_model_cards_make_a_worker_known(folder: Path, context: PlaneContext) -> None:
    """PLANE-16: The card that Dynamo writes for a worker is seen here under its id, and goes with it."""

    async def run() -> None:
        watch = await watch_workers(ENDPOINT, context)
        with peer(folder, "register", "tiny") as theirs:
            worker_id = (await asyncio.to_thread(theirs.ask))["worker_id"]
            async with asyncio.timeout(PATIENCE_SECONDS):
                event = await anext(aiter(watch))
            assert event.worker_id == worker_id
            assert json.loads(event.card or "")["display_name"] == "tiny"
            await asyncio.to_thread(theirs.leave)
            async with asyncio.timeout(PATIENCE_SECONDS):
                event = await anext(aiter(watch))
            assert (event.worker_id, event.card) == (worker_id, None)
        await watch.close()

    asyncio.run(run())


def test_our_engine_and_our_relay_reach_their_subscriber(folder: Path) -> None:
    """PLANE-10, RELAY-02: The raw stream of our engine passes Dynamo's relay, and, as the same bytes, ours:
    either way Dynamo's subscriber receives the engine's forward passes.
    """
    port = free_port()
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("DYN_", "FORWARDPASS_"))
    }
    ours = [sys.executable, "-m", "forwardpass"]
    mock = subprocess.Popen(
        [*ours, "mock", "--ranks", "1", "--port", str(port), "--seconds", "60"],
        env=kept,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    recorder = None
    try:
        with peer(folder, "receive") as theirs:
            with peer(folder, "relay", f"tcp://127.0.0.1:{port}"):
                relayed = theirs.payloads(lambda data: bool(decode_strict(data).wall_time), 5)
            counters = [decode_strict(data).counter_id for data in relayed]
            assert counters == sorted(counters)
            recorder = subprocess.Popen(
                [*ours, "record", f"tcp://127.0.0.1:{port}", "--output", str(folder / "trace"), "--quiet",
                 "--endpoint", str(ENDPOINT)],
                env={**kept, **environment(folder)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            later = theirs.payloads(lambda data: decode_strict(data).counter_id > counters[-1] + 20, 5)
            assert records(folder) != []
            recorder.terminate()
            assert recorder.wait(PATIENCE_SECONDS) == 0
            assert records(folder) == []
    finally:
        for process in filter(None, (mock, recorder)):
            process.kill()
            process.wait(PATIENCE_SECONDS)
    # byte for byte: the trace that our relay wrote first holds every message that their subscriber got
    rows = []
    for path in folder.glob("trace*.jsonl.gz"):
        with gzip.open(path, "rt") as lines:
            rows += [json.loads(line) for line in lines]
    traced = {row["event"]["fpm"]["counter_id"]: row["event"]["fpm"] for row in rows}
    assert [traced[decode_strict(data).counter_id] for data in later] == [
        msgpack.unpackb(data) for data in later
    ]
