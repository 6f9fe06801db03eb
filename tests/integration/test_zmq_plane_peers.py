"""A subscriber of the ZMQ plane and the peers it may meet."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

from forwardpass.config.settings import Sources
from forwardpass.errors import ConfigError, PlaneUnavailable
from forwardpass.plane.base import TOPIC, PlaneContext, PlaneMessage, PlanePublisher
from forwardpass.plane.discovery.base import EVENT_CHANNELS, MODEL_CARDS
from forwardpass.plane.discovery.file_names import file_name
from forwardpass.plane.discovery.records import channel_prefix, write_channel
from forwardpass.plane.envelope import encode_envelope
from forwardpass.plane.names import draw_publisher_id
from forwardpass.plane.urls import find_plane, open_publisher, open_subscriber, schemes
from forwardpass.plane.zmq import factory, sub_socket
from forwardpass.plane.zmq.frames import join
from forwardpass.plane.zmq.subscriber import ZmqSubscriber
from forwardpass.quiet import QuietLog
from forwardpass.testing.ports import free_port
from forwardpass.wire.keys import Endpoint

PATIENCE_SECONDS = 15.0
HERE = Endpoint("a", "b", "c")
CONTEXT = PlaneContext(sources=Sources({"DYN_EVENT_PLANE_HOST": "127.0.0.1"}))


@pytest.fixture
def rogue() -> Iterator[tuple[zmq.Socket[bytes], str]]:
    """Yield a bare PUB socket, which sends whatever a test likes, and its address."""
    publisher: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
    publisher.bind("tcp://127.0.0.1:*")
    yield publisher, publisher.get_string(zmq.LAST_ENDPOINT)
    publisher.close(0)


def message(payload: bytes, *, topic: bytes = TOPIC.encode(), sequence: int = 0) -> tuple[bytes, ...]:
    """Return the frames of a good message."""
    return join(topic, 5, sequence, encode_envelope(5, sequence, 1, payload))


@asynccontextmanager
async def repeated(send: Callable[[], Awaitable[None] | None]) -> AsyncIterator[None]:
    """Send again and again meanwhile: what is sent before a connection is there is lost."""

    async def run() -> None:
        while True:
            sent = send()
            if sent is not None:
                await sent
            await asyncio.sleep(0.02)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()


async def arrival(subscriber: ZmqSubscriber, payload: bytes) -> PlaneMessage:
    """Return the next message with this payload."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for received in subscriber:
            if received.payload == payload:
                return received
    raise AssertionError("the subscription ended")


async def until(reached: Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not reached():
            await asyncio.sleep(0.02)


async def subscribe(url: str) -> ZmqSubscriber:
    """Return a subscription to the endpoint."""
    return await factory.open_subscriber(url, HERE, CONTEXT)


BAD_MESSAGES = [
    (TOPIC.encode(),),
    (TOPIC.encode(), b"", b""),
    (*message(b"x"), b"one more"),
    (*message(b"x"), *[b"more"] * 3000),
    (TOPIC.encode(), b"12345678", b"1234567", b"\x01"),
    (*message(b"x")[:3], b"\x02" + message(b"x")[3][1:]),
    (*message(b"x")[:3], message(b"x")[3][:-1]),
    (*message(b"x")[:3], b"\x01\x00\x00\x00\x01\xc1"),
    (*message(b"x")[:3], b"\x01\x00\x01\x86\xa0" + b"\x91" * 100_000),
    (*message(b"x")[:3], b"\x01\x00\x0f\x42\x40" + b"\xd9\xff" * 500_000),
]
"""Wrong frames, a wrong wrapper, and envelopes that are none: a byte that means nothing, deep, long."""


def test_bad_messages_are_counted(
    rogue: tuple[zmq.Socket[bytes], str], caplog: pytest.LogCaptureFixture
) -> None:
    """PLANE-04: What is no message is counted as malformed, said once, and the next message is whole; other
    topics that begin alike are neither delivered nor malformed.
    """
    publisher, address = rogue

    async def run() -> None:
        subscriber = await subscribe(f"zmq+{address}")
        async with repeated(lambda: publisher.send_multipart(message(b"first"))):
            await arrival(subscriber, b"first")
        for parts in BAD_MESSAGES:
            publisher.send_multipart(parts)
        publisher.send_multipart(message(b"other", topic=TOPIC.encode() + b"-2"))
        publisher.send_multipart((b"another", b"", b""))
        other = encode_envelope(5, 0, 1, b"sly").replace(TOPIC.encode(), b"forward-pass-METRICS")
        publisher.send_multipart(join(TOPIC.encode(), 5, 0, other))
        publisher.send_multipart(message(b"last"))
        received = await arrival(subscriber, b"last")
        counts = subscriber.counts()
        assert counts.dropped == {"malformed": len(BAD_MESSAGES)}
        assert counts.pending == 0
        assert (received.publisher_id, received.sequence, received.endpoint) == (5, 0, HERE)
        await subscriber.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())

    assert len(caplog.records) == 1


def test_a_frame_beyond_the_limit_costs_its_sender_alone(
    rogue: tuple[zmq.Socket[bytes], str], caplog: pytest.LogCaptureFixture
) -> None:
    """PLANE-06: A frame that is too large never enters memory; its sender is connected anew, and other
    publishers are read meanwhile.
    """
    publisher, address = rogue
    honest_url = f"zmq+tcp://127.0.0.1:{free_port()}"

    async def run() -> None:
        honest = await open_publisher(honest_url, HERE, context=CONTEXT)
        subscriber = await subscribe(f"{honest_url},{address}")
        async with repeated(lambda: publisher.send_multipart(message(b"before"))):
            await arrival(subscriber, b"before")
        publisher.send_multipart((*message(b"")[:3], bytes(3_000_000)))
        async with repeated(lambda: honest.publish(b"honest")):
            await arrival(subscriber, b"honest")
        async with repeated(lambda: publisher.send_multipart(message(b"after"))):
            await arrival(subscriber, b"after")
        await subscriber.close()
        await honest.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())

    assert [address in record.getMessage() for record in caplog.records] == [True]


def test_a_peer_that_is_no_publisher() -> None:
    """PLANE-06: An address where something else answers, or nothing, keeps no other from being read."""
    url = f"zmq+tcp://127.0.0.1:{free_port()}"
    web = socket.create_server(("127.0.0.1", 0))
    web_port = web.getsockname()[1]

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, sock=web)
        publisher = await open_publisher(url, HERE, context=CONTEXT)
        subscriber = await subscribe(
            f"{url},127.0.0.1:{web_port},127.0.0.1:{free_port()},no-such-host.invalid:1"
        )
        async with repeated(lambda: publisher.publish(b"x")):
            await arrival(subscriber, b"x")
        await subscriber.close()
        await publisher.close()
        server.close()

    asyncio.run(run())


def test_a_bug_costs_its_message_alone(
    rogue: tuple[zmq.Socket[bytes], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Where taking a message fails unforeseen, that is said with its traceback, and reading goes on."""
    publisher, address = rogue
    taken: list[bytes] = []

    def take(parts: list[bytes]) -> None:
        taken.append(parts[-1])
        if parts[-1] == b"bug":
            raise RuntimeError("on purpose")

    async def run() -> None:
        reader = sub_socket.SubSocket(b"", 1000, take, QuietLog(logging.getLogger("forwardpass.test")))
        reader.connect(address)
        async with repeated(lambda: publisher.send(b"before")):
            await until(lambda: bool(taken), "the connection is there")
        for payload in (b"bug", b"bug", b"after"):
            publisher.send(payload)
        await until(lambda: taken[-1] == b"after", "the next message is taken")
        reader.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())

    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_a_publisher_that_comes_back() -> None:
    """PLANE-02: At a fixed address the next publisher is read after the first, and has another id."""
    url = f"zmq+tcp://127.0.0.1:{free_port()}"

    async def run() -> None:
        subscriber = await subscribe(url)
        ids = []
        for payload in (b"one", b"two"):
            publisher = await _bound(url)
            async with repeated(lambda publisher=publisher, payload=payload: publisher.publish(payload)):
                ids.append((await arrival(subscriber, payload)).publisher_id)
            await publisher.close()
        assert len(set(ids)) == 2
        await subscriber.close()

    asyncio.run(run())


async def _bound(url: str) -> PlanePublisher:
    """Open a publisher as soon as its address is free again, which libzmq says only by failing."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await open_publisher(url, HERE, context=CONTEXT)
            except PlaneUnavailable:
                await asyncio.sleep(0.02)


def test_removal_and_addresses_that_move(rogue: tuple[zmq.Socket[bytes], str], tmp_path: Path) -> None:
    """PLANE-12, PLANE-13: A publisher whose record goes is not read any more, though it still sends; a record
    that changes its address is read where it was first.
    """
    publisher, address = rogue
    folder = tmp_path / EVENT_CHANNELS
    folder.mkdir(parents=True)
    record = folder / file_name(f"{channel_prefix(HERE)}7")
    record.write_bytes(write_channel(HERE, 7, address))

    async def run() -> None:
        subscriber = await subscribe(f"zmq+file:{tmp_path}")
        async with repeated(lambda: publisher.send_multipart(message(b"x"))):
            await arrival(subscriber, b"x")
            record.write_bytes(write_channel(HERE, 7, "tcp://127.0.0.1:1"))
            await asyncio.sleep(0.4)  # longer than the folder is not looked at
            await _drained(subscriber)
            await arrival(subscriber, b"x")
            record.unlink()
            await asyncio.sleep(0.4)
            await _drained(subscriber)
            await asyncio.sleep(0.1)  # in which five more messages were sent
            assert subscriber.counts().pending == 0
        await subscriber.close()

    asyncio.run(run())


async def _drained(subscriber: ZmqSubscriber) -> None:
    while subscriber.counts().pending:
        await anext(aiter(subscriber))


def test_records_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PLANE-13: However many records there are, only so many connections are made."""
    monkeypatch.setattr(sub_socket, "MAX_PEERS", 3)
    folder = tmp_path / EVENT_CHANNELS
    folder.mkdir(parents=True)

    async def run() -> None:
        asked: set[int] = set()

        async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.add(writer.get_extra_info("sockname")[1])
            writer.close()

        servers = [await asyncio.start_server(accept, "127.0.0.1", 0) for _ in range(5)]
        for server in servers:
            port = server.sockets[0].getsockname()[1]
            record = write_channel(HERE, port, f"tcp://127.0.0.1:{port}")
            (folder / file_name(f"{channel_prefix(HERE)}{port:x}")).write_bytes(record)
        subscriber = await subscribe(f"zmq+file:{tmp_path}")
        await until(lambda: len(asked) >= 3, "connections are made")
        await asyncio.sleep(0.3)  # in which others would have been made
        assert len(asked) == 3
        await subscriber.close()
        for server in servers:
            server.close()

    asyncio.run(run())


def test_a_publisher_binds_what_it_advertises(tmp_path: Path) -> None:
    """D-32, PLANE-05, PLANE-17, TRAP-08: The address in the record is the one that is bound, and no other is;
    no model card is written.
    """

    async def run() -> None:
        publisher = await open_publisher(f"zmq+file:{tmp_path}", HERE, context=CONTEXT)
        (record,) = (tmp_path / EVENT_CHANNELS).iterdir()
        assert not (tmp_path / MODEL_CARDS).exists()
        assert json.loads(record.read_bytes())["instance_id"] == publisher.publisher_id
        address = json.loads(record.read_bytes())["transport"]["config"]["endpoint"]
        port = int(address.removeprefix("tcp://127.0.0.1:"))
        with socket.create_connection(("127.0.0.1", port)):
            pass
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", port)):
            pass
        await publisher.close()

    asyncio.run(run())


def test_an_address_of_version_6() -> None:
    """PLANE-05: A publisher on an IPv6 address is found and read like any other."""
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    context = PlaneContext(sources=Sources({"DYN_EVENT_PLANE_HOST": "::1"}))

    async def run() -> None:
        url = f"zmq+mem:six-{draw_publisher_id()}"
        subscriber = await factory.open_subscriber(url, HERE, context)
        publisher = await open_publisher(url, HERE, context=context)
        async with repeated(lambda: publisher.publish(b"six")):
            await arrival(subscriber, b"six")
        await subscriber.close()
        await publisher.close()

    asyncio.run(run())


def test_the_last_messages_of_a_publisher_arrive() -> None:
    """PLANE-10: What was published before a publisher leaves is received, although its record goes."""

    async def run() -> None:
        url = f"zmq+mem:last-{draw_publisher_id()}"
        subscriber = await subscribe(url)
        publisher = await open_publisher(url, HERE, context=CONTEXT)
        async with repeated(lambda: publisher.publish(b"first")):
            await arrival(subscriber, b"first")
        for number in range(1, 11):
            await publisher.publish(b"%d" % number)
        await publisher.close()
        await arrival(subscriber, b"10")
        await subscriber.close()

    asyncio.run(run())


def test_publishers_of_one_process(tmp_path: Path) -> None:
    """TRAP-06, TRAP-07: Eight publishers of one process have eight records, with ids that JSON tools keep,
    and each takes only its own away.
    """

    async def run() -> None:
        url = f"zmq+file:{tmp_path}"
        publishers = [await open_publisher(url, HERE, context=CONTEXT) for _ in range(8)]
        values = [json.loads(path.read_bytes()) for path in (tmp_path / EVENT_CHANNELS).iterdir()]
        assert {value["instance_id"] for value in values} == {one.publisher_id for one in publishers}
        assert len({value["transport"]["config"]["endpoint"] for value in values}) == 8
        assert max(value["instance_id"] for value in values) < 2**53
        await publishers[0].close()
        assert len(list((tmp_path / EVENT_CHANNELS).iterdir())) == 7
        for publisher in publishers:
            await publisher.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "variables"),
    [
        ("zmq+tcp://127.0.0.1:1,127.0.0.1:2", {}),
        ("zmq+tcp://", {}),
        ("zmq+broker:xsub=tcp://a:1", {}),
        ("zmq+mem:", {}),
        ("zmq:something", {}),
        ("zmq:", {"DYN_ZMQ_BROKER_URL": "xpub=x"}),
        ("zmq:", {"DYN_DISCOVERY_BACKEND": "kubernetes"}),
        ("zmq+mem:x", {"DYN_EVENT_PLANE_HOST": "no-such-interface"}),
    ],
)
def test_urls_that_cannot_be_used(url: str, variables: dict[str, str]) -> None:
    """PLANE-31: What cannot be opened is the operator's error, and says what could be."""
    context = PlaneContext(sources=Sources(variables))
    with pytest.raises(ConfigError):
        asyncio.run(open_publisher(url, HERE, context=context))


def test_an_endpoint_that_is_no_text() -> None:
    """PLANE-31: An endpoint that JSON cannot carry, as a wrong byte in an argument makes one, is refused."""
    endpoint = Endpoint("a", "\udcff", "c")
    with pytest.raises(ConfigError) as caught:
        asyncio.run(open_publisher("zmq+mem:surrogates", endpoint, context=CONTEXT))

    assert caught.value.variable == "endpoint"


def test_an_address_that_is_taken() -> None:
    """PLANE-02: A fixed address that another program has makes the plane unavailable, for now."""

    async def run() -> None:
        url = f"zmq+tcp://127.0.0.1:{free_port()}"
        first = await open_publisher(url, HERE, context=CONTEXT)
        with pytest.raises(PlaneUnavailable):
            await open_publisher(url, HERE, context=CONTEXT)
        await first.close()

    asyncio.run(run())


@pytest.mark.parametrize("known", [True, False])
def test_brokers_are_looked_up(known: bool, rogue: tuple[zmq.Socket[bytes], str]) -> None:
    """PLANE-21: With DYN_ZMQ_BROKER_ENABLED the namespace's brokers are those that discovery lists; without
    any the plane is unavailable.
    """
    publisher, address = rogue
    variables = {"DYN_ZMQ_BROKER_ENABLED": "yes", "DYN_DISCOVERY_BACKEND": "mem"}
    context = PlaneContext(sources=Sources(variables))

    async def run() -> None:
        from forwardpass.plane.discovery.choose import open_discovery

        discovery = open_discovery("mem", context)
        config = {"xsub_endpoints": ["tcp://127.0.0.1:1"], "xpub_endpoints": [address]}
        record = {"type": "EventChannel", "transport": {"kind": "ZmqBroker", "config": config}}
        place = (
            "namespace/a/component/zmq_broker/topic/x/1" if known else "namespace/a2/component/zmq_broker/1"
        )
        await discovery.register(EVENT_CHANNELS, place, json.dumps(record).encode())
        if not known:
            with pytest.raises(PlaneUnavailable):
                await open_subscriber("zmq:", HERE, context=context)
            return
        subscriber = await factory.open_subscriber("zmq:", HERE, context)
        name = b"namespace.a.component.b.endpoint.c.forward-pass-metrics"
        async with repeated(lambda: publisher.send_multipart(message(b"x", topic=name))):
            await arrival(subscriber, b"x")
        await subscriber.close()
        await discovery.close()

    asyncio.run(run())


def test_schemes_are_registered() -> None:
    """PLANE-31: Every scheme of the ZMQ plane finds its factory, from the table as from entry points."""
    urls = [
        "zmq:",
        "zmq+broker:xsub=tcp://a:1,xpub=tcp://a:2",
        "zmq+etcd:",
        "zmq+file:",
        "zmq+mem:x",
        "zmq+tcp://a:1",
    ]
    for scheme, url in zip(factory.SCHEMES, urls, strict=True):
        assert url.startswith(f"{scheme}:")
        assert find_plane(url) is factory
    assert set(factory.SCHEMES) <= set(schemes())


@pytest.mark.parametrize(
    "url",
    [
        "zmq+tcp://a",
        "zmq+broker:x",
        "zmq+mem:",
        "zmq:x",
        "zmq+etcd:host",
        "zmq+etcd:https://e:1",
        "zmq+file:\0",
    ],
)
def test_urls_are_checked_before_anything_is_opened(url: str) -> None:
    """PLANE-31: A URL that can never work is refused when the plane is looked up, not when it is opened."""
    with pytest.raises(ConfigError):
        find_plane(url)


def test_workers_are_found_where_the_plane_is() -> None:
    """PLANE-16: The cards of a plane's workers are watched in the discovery that the plane uses."""
    name = f"workers-{draw_publisher_id()}"

    async def run() -> None:
        from forwardpass.plane.discovery.cards import register_worker

        watch = await factory.watch_workers(f"zmq+mem:{name}", HERE, CONTEXT)
        card = await register_worker(HERE, "9", CONTEXT, display_name="x", discovery=f"mem:{name}")
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await anext(aiter(watch))).worker_id == "9"
        await card.close()
        await watch.close()

    asyncio.run(run())
