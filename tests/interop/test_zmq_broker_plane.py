"""The ZMQ plane through brokers: our own ends, and Dynamo's runtime at either."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from dynamo_zmq_peer import INSTALLED, PATIENCE_SECONDS, Peer
from plane_servers import brokers

from forwardpass.config.settings import Sources
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.urls import open_publisher, open_subscriber
from forwardpass.plane.zmq import factory
from forwardpass.testing.conformance_plane import CHECKS, Check, PlaneRig
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.keys import Endpoint

ENDPOINT = Endpoint("my ns", "back-end", "gen_1")


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """Run one broker."""
    with brokers() as text:
        yield text


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_zmq_plane_through_a_broker(check: Check, broker: str) -> None:
    """PLANE-20: Through a broker the ZMQ plane keeps each promise that every plane must keep."""

    async def run() -> None:
        await check(PlaneRig(factory, f"zmq+broker:{broker}", PlaneContext(sources=Sources({})), 0.15))

    asyncio.run(run())


def test_several_brokers_bring_a_message_once() -> None:
    """PLANE-22: What comes through two brokers is delivered once, in order, and all of it."""

    async def run(url: str) -> None:
        context = PlaneContext(sources=Sources({"DYN_ZMQ_BROKER_URL": url}))
        subscriber = await open_subscriber("zmq:", ENDPOINT, context=context)
        publisher = await open_publisher("zmq:", ENDPOINT, context=context)
        messages = aiter(subscriber)
        warming = asyncio.create_task(_repeat(publisher))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await anext(messages)
        warming.cancel()
        await asyncio.sleep(0.3)  # both brokers know the subscription by now
        for number in range(500):
            await publisher.publish(b"%d" % number)
        received: list[bytes] = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while received[-1:] != [b"499"]:
                message = await anext(messages)
                received += [] if message.payload == b"warm" else [message.payload]
        await asyncio.sleep(0.2)  # the other broker's copies
        assert received == [b"%d" % number for number in range(500)]
        assert subscriber.counts().pending == 0
        await subscriber.close()
        await publisher.close()

    with brokers(2) as url:
        asyncio.run(run(url))


@pytest.mark.skipif(not INSTALLED, reason="needs ai-dynamo-runtime")
def test_dynamo_through_a_broker(broker: str) -> None:
    """PLANE-20, PLANE-21: Through one broker Dynamo's publisher reaches our subscriber, and our publisher
    reaches Dynamo's, under the full subject and without discovery.
    """
    variables = {"DYN_ZMQ_BROKER_URL": broker, "DYN_EVENT_PLANE_HOST": "127.0.0.1"}
    context = PlaneContext(sources=Sources(variables))

    async def theirs_to_ours() -> None:
        subscriber = await open_subscriber("zmq:", ENDPOINT, context=context)
        with Peer("mem", "publish", "w9", "1", env=variables, endpoint=str(ENDPOINT)):
            async with asyncio.timeout(PATIENCE_SECONDS):
                message = await anext(aiter(subscriber))
            assert decode_strict(message.payload).worker_id == "w9"
        await subscriber.close()

    async def ours_to_theirs() -> None:
        publisher = await open_publisher("zmq:", ENDPOINT, context=context)
        with Peer("mem", "receive", env=variables, endpoint=str(ENDPOINT)) as theirs:
            warming = asyncio.create_task(_repeat(publisher))
            assert await asyncio.to_thread(theirs.payloads, lambda data: True, 1) == [b"warm"]
            warming.cancel()
        await publisher.close()

    asyncio.run(theirs_to_ours())
    asyncio.run(ours_to_theirs())


async def _repeat(publisher: object) -> None:
    """Publish until cancelled: what is sent before the broker knows the subscription is lost."""
    while True:
        await publisher.publish(b"warm")  # type: ignore[attr-defined]
        await asyncio.sleep(0.05)
