"""Knows what every event plane must do, and checks it against the real thing.

``check_plane`` runs all checks; a test suite that wants one test per promise iterates over ``CHECKS``. A
check raises ``AssertionError`` with what was broken. Planes with a network need time until a subscription
is in effect and until messages have travelled: ``settle_seconds``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from msgspec import Struct

from forwardpass.errors import PayloadTooLarge, PlaneClosed
from forwardpass.plane.base import PlaneContext, PlaneFactory, PlaneMessage, PlanePublisher, PlaneSubscriber
from forwardpass.wire.keys import MAX_PRODUCER_ID, Endpoint

__all__ = [
    "CHECKS",
    "PlaneRig",
    "check_bounded_memory",
    "check_close",
    "check_close_wakes",
    "check_order",
    "check_oversize",
    "check_peer_gone",
    "check_plane",
    "check_publish_after_close",
    "check_scope",
]

_PATIENCE_SECONDS = 10.0
"""Longest wait for one message that must come."""
HERE = Endpoint("conformance", "plane", "here")
_ELSEWHERE = (
    Endpoint("conformance", "plane", "here2"),
    Endpoint("conformance", "plane.here", "x"),
    Endpoint("conform ance", "plänë", "%68ere"),
    Endpoint("conformance", "*", ">"),
)
"""Names that a careless plane would mix up: a prefix, a separator, other alphabets, wildcards."""


class PlaneRig(Struct, frozen=True):
    """The plane under test and how to treat it."""

    factory: PlaneFactory
    url: str
    context: PlaneContext
    settle_seconds: float = 0.0
    oversize_bytes: int | None = 64 * 1024 * 1024
    """A payload that is too large for this plane; ``None`` where nothing is."""

    async def publisher(self, endpoint: Endpoint = HERE) -> PlanePublisher:
        """Return a new publisher, in effect."""
        publisher = await self.factory.open_publisher(self.url, endpoint, self.context)
        await self.settle()
        return publisher

    async def subscriber(
        self, endpoint: Endpoint = HERE, receive_capacity: int | None = None
    ) -> PlaneSubscriber:
        """Return a new subscriber, in effect."""
        context = self.context
        if receive_capacity is not None:
            context = msgspec.structs.replace(context, receive_capacity=receive_capacity)
        subscriber = await self.factory.open_subscriber(self.url, endpoint, context)
        await self.settle()
        return subscriber

    async def settle(self) -> None:
        """Wait until what was done has taken effect at the peers."""
        await asyncio.sleep(self.settle_seconds)


Check = Callable[[PlaneRig], Awaitable[None]]


def check_plane(
    factory: PlaneFactory,
    url: str,
    *,
    context: PlaneContext | None = None,
    settle_seconds: float = 0.0,
    oversize_bytes: int | None = 64 * 1024 * 1024,
) -> None:
    """Run every check against the plane that ``factory`` opens at ``url``. For code without an event loop."""
    rig = PlaneRig(factory, url, context or PlaneContext(), settle_seconds, oversize_bytes)
    for check in CHECKS:
        asyncio.run(_checked(check, rig))


async def _checked(check: Check, rig: PlaneRig) -> None:
    await check(rig)


async def check_order(rig: PlaneRig) -> None:
    """Messages of one publisher arrive in order, once, bit for bit, with that publisher's id and count."""
    subscriber = await rig.subscriber()
    publishers = [await rig.publisher(), await rig.publisher()]
    payloads = [b"", b"\x00\xff\x87", *(f"payload {number}".encode() for number in range(98))]
    for payload in payloads:
        for publisher in publishers:
            await publisher.publish(payload)
    received = await _take(subscriber, len(payloads) * len(publishers))

    ids = {publisher.publisher_id for publisher in publishers}
    _equal(len(ids), 2, "publishers of one process have ids of their own")
    _equal({message.publisher_id for message in received}, ids, "messages carry their publisher's id")
    _equal(all(0 <= one <= MAX_PRODUCER_ID for one in ids), True, "ids have at most 53 bits")
    for publisher_id in ids:
        own = [message for message in received if message.publisher_id == publisher_id]
        _equal([message.payload for message in own], payloads, "order and content are the publisher's")
        _equal([message.sequence for message in own], list(range(len(own))), "the sequence counts from 0")
    _equal({message.endpoint for message in received}, {HERE}, "messages carry their endpoint")
    late = [message for message in received if message.received_at_ms < message.published_at_ms]
    _equal(late, [], "nothing is received before it was published (by one clock)")
    await _close_all(subscriber, *publishers)


async def check_scope(rig: PlaneRig) -> None:
    """A subscriber gets exactly its endpoint, whatever characters the names contain."""
    endpoints = (HERE, *_ELSEWHERE)
    # at once, so that a plane that needs time to settle needs it once
    subscribers = await asyncio.gather(*(rig.subscriber(endpoint) for endpoint in endpoints))
    publishers = await asyncio.gather(*(rig.publisher(endpoint) for endpoint in endpoints))
    for endpoint, publisher in zip(endpoints, publishers, strict=True):
        await publisher.publish(str(endpoint).encode())
    received = [await _take(subscriber, 1) for subscriber in subscribers]
    await rig.settle()
    for endpoint, subscriber, messages in zip(endpoints, subscribers, received, strict=True):
        _equal(messages[0].payload, str(endpoint).encode(), f"{endpoint} gets its own")
        _equal(subscriber.counts().pending, 0, f"{endpoint} gets nothing else")
    await _close_all(*subscribers, *publishers)


async def check_bounded_memory(rig: PlaneRig) -> None:
    """A subscriber that does not read keeps the newest messages only, and counts what it lost."""
    capacity, total = 8, 100
    subscriber = await rig.subscriber(receive_capacity=capacity)
    publisher = await rig.publisher()
    for number in range(total):
        await publisher.publish(str(number).encode())
    await _until(lambda: subscriber.counts().offered >= total, "all messages reach the subscriber's queue")

    counts = subscriber.counts()
    _equal(counts.dropped, {"queue_full": total - capacity}, "losses are counted as queue_full")
    _equal(counts.pending, capacity, "the queue holds no more than its capacity")
    received = await _take(subscriber, capacity)
    newest = [str(number).encode() for number in range(total - capacity, total)]
    _equal([message.payload for message in received], newest, "the oldest go first")
    await _close_all(subscriber, publisher)


async def check_close(rig: PlaneRig) -> None:
    """Closing twice is fine; what was queued is still delivered; then the iteration ends."""
    subscriber, publisher = await rig.subscriber(), await rig.publisher()
    await publisher.publish(b"before")
    await _until(lambda: subscriber.counts().pending == 1, "the message arrives")
    await _close_all(subscriber, publisher, subscriber, publisher)

    left = await _take(subscriber, 2)
    _equal(
        [message.payload for message in left],
        [b"before"],
        "what was queued at close is delivered, then the iteration ends",
    )


async def check_close_wakes(rig: PlaneRig) -> None:
    """Closing a subscriber ends an iteration that waits."""
    subscriber = await rig.subscriber()
    waiting = asyncio.ensure_future(_take(subscriber, 1))
    await asyncio.sleep(0.01)
    await subscriber.close()
    async with asyncio.timeout(_PATIENCE_SECONDS):
        _equal(await waiting, [], "close() ends a waiting iteration")


async def check_publish_after_close(rig: PlaneRig) -> None:
    """Publishing after close raises PlaneClosed."""
    publisher = await rig.publisher()
    await publisher.close()
    try:
        await publisher.publish(b"late")
    except PlaneClosed:
        return
    raise AssertionError("publish after close must raise PlaneClosed")


async def check_peer_gone(rig: PlaneRig) -> None:
    """Publishing goes on without subscribers, and a subscriber waits for the next publisher."""
    alone = await rig.publisher()
    await alone.publish(b"nobody listens")
    await rig.settle()  # what is still under way may reach who comes meanwhile
    first = await rig.subscriber()
    await alone.publish(b"one")
    _equal(
        (await _take(first, 1))[0].payload, b"one", "what was published before subscribing is not delivered"
    )
    await first.close()
    await alone.publish(b"the subscriber is gone")
    await rig.settle()
    second = await rig.subscriber()
    await alone.close()
    successor = await rig.publisher()
    await successor.publish(b"two")
    message = (await _take(second, 1))[0]
    _equal(message.payload, b"two", "a subscriber receives from a publisher that comes later")
    _equal(message.sequence, 0, "a new publisher counts from 0")
    _equal(message.publisher_id == alone.publisher_id, False, "a new publisher has a new id")
    await _close_all(second, successor)


async def check_oversize(rig: PlaneRig) -> None:
    """A payload that is too large is refused with both sizes, and the next one goes through."""
    if rig.oversize_bytes is None:
        return
    subscriber, publisher = await rig.subscriber(), await rig.publisher()
    try:
        await publisher.publish(bytes(rig.oversize_bytes))
    except PayloadTooLarge as error:
        _equal(error.size, rig.oversize_bytes, "the error says the size")
        _equal(error.limit < error.size, True, "the error says the limit")
        await publisher.publish(bytes(error.limit))
        _equal(len((await _take(subscriber, 1))[0].payload), error.limit, "the limit itself passes")
    else:
        raise AssertionError("an oversize payload must raise PayloadTooLarge")
    await _close_all(subscriber, publisher)


CHECKS: tuple[Check, ...] = (
    check_order,
    check_scope,
    check_bounded_memory,
    check_close,
    check_close_wakes,
    check_publish_after_close,
    check_peer_gone,
    check_oversize,
)


async def _take(subscriber: PlaneSubscriber, count: int) -> list[PlaneMessage]:
    """Return the next ``count`` messages, or fewer if the iteration ends."""
    received: list[PlaneMessage] = []
    messages: AsyncIterator[PlaneMessage] = aiter(subscriber)
    while len(received) < count:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                received.append(await anext(messages))
        except StopAsyncIteration:
            break
        except TimeoutError:
            raise AssertionError(f"only {len(received)} of {count} messages arrived") from None
    return received


async def _until(reached: Callable[[], bool], what: str) -> None:
    for _ in range(int(_PATIENCE_SECONDS / 0.01)):
        if reached():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"did not happen: {what}")


async def _close_all(*members: PlanePublisher | PlaneSubscriber) -> None:
    for member in members:
        await member.close()


def _equal(actual: object, expected: object, promise: str) -> None:
    if actual != expected:
        raise AssertionError(f"{promise}: expected {expected!r}, got {actual!r}")
