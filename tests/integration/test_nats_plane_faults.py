"""What the NATS plane does when servers come late, restart, lag or refuse, and peers send anything."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

pytest.importorskip("nats")

import nats as nats_py
from relay_peers import ENDPOINT, message, one_stream

from forwardpass.config.settings import Sources
from forwardpass.errors import PlaneClosed, PlaneUnavailable
from forwardpass.plane import nats
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.envelope import encode_envelope
from forwardpass.plane.names import subject
from forwardpass.plane.nats.link import MAX_PENDING_BYTES
from forwardpass.plane.nats.publisher import NatsPublisher
from forwardpass.plane.nats.subscriber import NatsSubscriber
from forwardpass.testing.nats_server import NatsServer, find_nats_server, nats_server
from forwardpass.testing.ports import free_port
from forwardpass.wire.keys import Endpoint

pytestmark = pytest.mark.skipif(find_nats_server() is None, reason="nats-server is not installed")

HERE = Endpoint("ns", "part", "gen")
CONTEXT = PlaneContext(Sources({}))
PATIENCE_SECONDS = 20.0


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """Run a server that the test may kill."""
    with nats_server() as running:
        yield running


@asynccontextmanager
async def pair(
    url: str, context: PlaneContext = CONTEXT
) -> AsyncIterator[tuple[NatsPublisher, NatsSubscriber]]:
    """Open a subscriber and a publisher, and close them."""
    subscriber = await nats.open_subscriber(url, HERE, context)
    publisher = await nats.open_publisher(url, HERE, context)
    try:
        yield publisher, subscriber
    finally:
        await publisher.close()
        await subscriber.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def publish_for_ever(publisher: NatsPublisher, payload: bytes) -> None:
    """Publish until that is an error."""
    while True:
        await publisher.publish(payload)


async def arrives(publisher: NatsPublisher, subscriber: NatsSubscriber) -> None:
    """Publish until something new arrives."""
    before = subscriber.counts().offered
    end = time.monotonic() + PATIENCE_SECONDS
    while subscriber.counts().offered == before:
        assert time.monotonic() < end
        with suppress(PlaneUnavailable):
            await publisher.publish(b"again")
        await asyncio.sleep(0.05)


def test_a_server_that_is_not_there() -> None:
    """NATS-07: An absent server is an error at once; opening works as soon as it is there."""
    port = free_port()

    async def run() -> None:
        with pytest.raises(PlaneUnavailable, match=f"127.0.0.1:{port}"):
            await nats.open_publisher(f"nats://127.0.0.1:{port}", HERE, CONTEXT)
        with nats_server() as late:
            async with pair(late.url) as (publisher, subscriber):
                await arrives(publisher, subscriber)

    asyncio.run(run())


def test_one_of_several_servers_is_enough(server: NatsServer) -> None:
    """NATS-07: Of several servers in one URL any that is there is used."""

    async def run() -> None:
        async with pair(f"nats://127.0.0.1:{free_port()},127.0.0.1:{server.port}") as (publisher, subscriber):
            await arrives(publisher, subscriber)

    asyncio.run(run())


def test_a_restarted_server(server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    """NATS-07: Publisher and subscriber connect again by themselves, and say so in a line each, not more."""
    caplog.set_level(logging.WARNING)

    async def run() -> None:
        async with pair(server.url) as (publisher, subscriber):
            await arrives(publisher, subscriber)
            await asyncio.to_thread(server.restart)
            await arrives(publisher, subscriber)

    asyncio.run(run())

    lost = [record for record in caplog.records if "is lost; connecting again" in record.getMessage()]
    assert len(lost) == 2
    assert len(caplog.records) < 8


def test_what_waits_for_an_absent_server_is_bounded(server: NatsServer) -> None:
    """NATS-07: A short absence costs nothing; beyond 2 MiB every further message is an error."""
    chunk = bytes(100_000)

    async def run() -> None:
        async with pair(server.url) as (publisher, subscriber):
            await asyncio.to_thread(server.kill)
            await until(lambda: publisher._link.client.is_reconnecting)
            taken = MAX_PENDING_BYTES // len(chunk)
            for _ in range(taken):
                await publisher.publish(chunk)
            with pytest.raises(PlaneUnavailable):
                await publisher.publish(chunk)
            await until(lambda: subscriber._link.client.is_reconnecting)
            await asyncio.to_thread(server.start)
            await until(lambda: subscriber._link.client.is_connected and publisher._link.client.is_connected)
            await publisher.publish(b"after")
            sequences = []
            async with asyncio.timeout(PATIENCE_SECONDS):
                async for message in subscriber:
                    sequences.append(message.sequence)
                    if message.payload == b"after":
                        break
            assert sequences[-1] == taken + 1  # the refused one used its number up

    asyncio.run(run())


def test_a_server_that_hangs(server: NatsServer) -> None:
    """NATS-07: A server that takes nothing costs a publisher errors, and neither memory nor its life."""
    chunk = bytes(100_000)

    async def run() -> None:
        async with pair(server.url) as (publisher, subscriber):
            server.pause()
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    with pytest.raises(PlaneUnavailable, match="does not take"):
                        await publish_for_ever(publisher, chunk)
                assert publisher._link.client.pending_data_size < MAX_PENDING_BYTES + 2 * len(chunk)
            finally:
                server.resume()
            await arrives(publisher, subscriber)

    asyncio.run(run())


def test_a_client_that_the_server_ended_is_replaced(server: NatsServer) -> None:
    """NATS-07: After an error for which nats-py gives up for good, both sides are there again."""

    async def run() -> None:
        async with pair(server.url) as (publisher, subscriber):
            await arrives(publisher, subscriber)
            links = (publisher._link, subscriber._link)
            ended = [link.client for link in links]
            for client in ended:
                await client._process_err("'Maximum Connections Exceeded'")
            await until(lambda: all(client.is_closed for client in ended))
            await until(lambda: all(link._client not in ended for link in links))
            await arrives(publisher, subscriber)

    asyncio.run(run())


def test_a_slow_subscription_is_counted(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """NATS-08: What nats-py throws away because its queue is full counts as a drop."""
    monkeypatch.setattr("forwardpass.plane.nats.subscriber.CLIENT_MESSAGES", 4)
    total = 2000

    async def run() -> None:
        async with pair(server.url) as (publisher, subscriber):
            for _ in range(total):
                await publisher.publish(b"x")
            await until(lambda: subscriber.counts().offered == total)
            counts = subscriber.counts()
            assert counts.dropped["queue_full"] > 0
            assert counts.pending + counts.dropped_total == total

    asyncio.run(run())


def test_anything_may_arrive(server: NatsServer) -> None:
    """NATS-03: What is no envelope or has another topic is counted and skipped; headers are ignored."""
    good = encode_envelope(7, 8, 9, b"good")

    async def run() -> None:
        client = await nats_py.connect(server.url)
        async with pair(server.url) as (_, subscriber):
            where = subject(HERE)
            for body in (b"", b"\xff" * 100, good[:-3], good.replace(b"forward-pass", b"forwardxpass")):
                await client.publish(where, body)
            await client.publish(where, good, headers={"a": "b"}, reply="some.where")
            async with asyncio.timeout(PATIENCE_SECONDS):
                message = await anext(aiter(subscriber))
            assert (message.payload, message.publisher_id, message.sequence) == (b"good", 7, 8)
            assert subscriber.counts().dropped == {"malformed": 4}
        await client.close()

    asyncio.run(run())


def test_what_is_sent(server: NatsServer) -> None:
    """NATS-01, NATS-02: A message is the envelope on the full subject: no header, no reply."""

    async def run() -> None:
        client = await nats_py.connect(server.url)
        received = await client.subscribe(">")
        await client.flush()
        async with pair(server.url) as (publisher, _):
            await publisher.publish(b"payload")
            message = await received.next_msg(PATIENCE_SECONDS)
            assert message.subject == "namespace.ns.component.part.endpoint.gen.forward-pass-metrics"
            assert (message.headers, message.reply) == (None, "")
            assert b"payload" in message.data
        await client.close()

    asyncio.run(run())


def test_a_subscription_that_is_not_allowed() -> None:
    """NATS-05: A server that forbids the subject refuses the subscription when it is opened."""
    config = (
        "authorization { users: [ { user: u, password: p,"
        ' permissions: { subscribe: { deny: "namespace.>" } } } ] }'
    )

    async def run(url: str) -> None:
        with pytest.raises(PlaneUnavailable, match="ermissions"):
            await nats.open_subscriber(url, HERE, CONTEXT)

    with nats_server(config=config) as server:
        asyncio.run(run(f"nats://u:p@127.0.0.1:{server.port}"))


def test_a_relay_publishes_to_nats(server: NatsServer) -> None:
    """NATS-02: What a relay receives on the raw stream arrives over NATS bit for bit and in order."""

    async def run() -> None:
        subscriber = await nats.open_subscriber(server.url, ENDPOINT, CONTEXT)
        async with one_stream(plane_url=server.url) as (_, publisher):
            sent = [message(counter) for counter in range(publisher.seq, publisher.seq + 100)]
            for payload in sent:
                publisher.send(payload)
            received: list[bytes] = []
            async with asyncio.timeout(PATIENCE_SECONDS):
                async for each in subscriber:
                    received.append(each.payload)
                    if received[-1] == sent[-1]:
                        break
        await subscriber.close()
        assert received[-len(sent) :] == sent

    asyncio.run(run())


def test_closed_is_closed(server: NatsServer) -> None:
    """A publisher that was closed while its server was away stays closed."""

    async def run() -> None:
        async with pair(server.url) as (publisher, _):
            await asyncio.to_thread(server.kill)
            await publisher.close()
            with pytest.raises(PlaneClosed):
                await publisher.publish(b"late")

    asyncio.run(run())


def test_closed_while_the_old_socket_closes(server: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    """nats-py ends with a cancellation of its own when it is closed in that moment; it stays there."""

    async def run() -> None:
        async with pair(server.url) as (publisher, _):
            client = publisher._link.client
            writer = client._transport._io_writer
            writer._protocol._get_close_waiter(writer).cancel()  # as nats-py does to its own reconnecting
            with pytest.raises(asyncio.CancelledError):
                await writer.wait_closed()
            await publisher.close()
            assert client.is_closed

    asyncio.run(run())
    assert "not left cleanly" not in caplog.text
