"""Knows the event plane that lives inside one process: ``memory:NAME``.

It carries payloads from a relay to consumers in the same process without a socket, also from one thread's
event loop to another's, and it is the plane to test against: :meth:`MemoryPlane.stall` and
:meth:`MemoryPlane.fail` make it behave as a plane whose peer hangs or refuses.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from weakref import WeakValueDictionary

from forwardpass.counters import StageCounts
from forwardpass.errors import ConfigError, PayloadTooLarge, PlaneClosed, PlaneUnavailable
from forwardpass.plane.base import PlaneContext, PlaneMessage
from forwardpass.plane.inbox import Inbox
from forwardpass.plane.names import draw_publisher_id
from forwardpass.wire.keys import Endpoint

__all__ = [
    "MAX_PAYLOAD_BYTES",
    "MemoryPlane",
    "MemoryPublisher",
    "MemorySubscriber",
    "memory_plane",
    "open_publisher",
    "open_subscriber",
]

SCHEME = "memory"
MAX_PAYLOAD_BYTES = 1_048_576
"""As the default of a NATS server, so that what passes here passes there."""

_planes: WeakValueDictionary[str, MemoryPlane] = WeakValueDictionary()


class MemoryPlane:
    """The subscribers of one plane, by endpoint. It lives as long as someone holds it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._inboxes: dict[Endpoint, tuple[tuple[Inbox, asyncio.AbstractEventLoop], ...]] = {}
        self._lock = threading.Lock()
        self._moving: asyncio.Event | None = None
        self._failure: str | None = None

    def subscribe(self, endpoint: Endpoint, inbox: Inbox) -> None:
        """Deliver what is published to ``endpoint`` from now on to ``inbox`` of the running loop too."""
        with self._lock:
            self._inboxes[endpoint] = (
                *self._inboxes.get(endpoint, ()),
                (inbox, asyncio.get_running_loop()),
            )

    def unsubscribe(self, endpoint: Endpoint, inbox: Inbox) -> None:
        """Deliver nothing more to ``inbox``."""
        with self._lock:
            left = tuple(each for each in self._inboxes.get(endpoint, ()) if each[0] is not inbox)
            if left:
                self._inboxes[endpoint] = left
            else:
                self._inboxes.pop(endpoint, None)

    def subscriptions(self, endpoint: Endpoint) -> int:
        """Return how many subscriptions ``endpoint`` has now."""
        return len(self._inboxes.get(endpoint, ()))

    async def deliver(self, message: PlaneMessage) -> None:
        """Hand ``message`` to every subscriber of its endpoint."""
        if self._moving is not None:
            await self._moving.wait()
        if self._failure is not None:
            raise PlaneUnavailable(self._failure)
        here = asyncio.get_running_loop()
        with self._lock:
            for inbox, loop in self._inboxes.get(message.endpoint, ()):
                if loop is here:
                    inbox.put(message)
                elif not loop.is_closed():
                    inbox.put_across(message, loop)

    def stall(self) -> None:
        """Let every publish wait until :meth:`recover`, as a peer does that hangs."""
        if self._moving is None:
            self._moving = asyncio.Event()

    def fail(self, reason: str) -> None:
        """Let every publish raise :class:`PlaneUnavailable` until :meth:`recover`."""
        self._failure = reason

    def recover(self) -> None:
        """End :meth:`stall` and :meth:`fail`."""
        self._failure = None
        if self._moving is not None:
            self._moving.set()
            self._moving = None


class MemoryPublisher:
    """A publisher on a :class:`MemoryPlane`."""

    def __init__(self, plane: MemoryPlane, endpoint: Endpoint, context: PlaneContext) -> None:
        self.publisher_id = draw_publisher_id()
        self._plane = plane
        self._endpoint = endpoint
        self._clock = context.clock
        self._sequence = 0
        self._closed = False

    async def publish(self, payload: bytes) -> None:
        """Hand ``payload`` to every subscriber. Raises as the protocol says."""
        if self._closed:
            raise PlaneClosed(f"publisher of {self._endpoint} on {SCHEME}:{self._plane.name} is closed")
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise PayloadTooLarge(len(payload), MAX_PAYLOAD_BYTES)
        now = self._clock.unix_ms()
        message = PlaneMessage(payload, self._endpoint, self.publisher_id, self._sequence, now, now)
        self._sequence += 1
        await self._plane.deliver(message)

    async def close(self) -> None:
        """Leave the plane. Idempotent."""
        self._closed = True


class MemorySubscriber:
    """A subscription on a :class:`MemoryPlane`."""

    def __init__(self, plane: MemoryPlane, endpoint: Endpoint, context: PlaneContext) -> None:
        self._plane = plane
        self._endpoint = endpoint
        self._inbox = Inbox(context.receive_capacity)
        plane.subscribe(endpoint, self._inbox)

    def __aiter__(self) -> AsyncIterator[PlaneMessage]:
        return self._inbox

    def counts(self) -> StageCounts:
        """Return what arrived, was consumed, waits and was dropped."""
        return self._inbox.counts()

    async def close(self) -> None:
        """End the subscription; iteration ends once the queue is empty. Idempotent."""
        self._plane.unsubscribe(self._endpoint, self._inbox)
        self._inbox.close()


def memory_plane(name: str) -> MemoryPlane:
    """Return the plane called ``name`` of this process, made on first use."""
    plane = _planes.get(name)
    if plane is None:
        plane = _planes[name] = MemoryPlane(name)
    return plane


async def open_publisher(url: str, endpoint: Endpoint, context: PlaneContext) -> MemoryPublisher:
    """Return a publisher of ``endpoint`` on the plane that ``memory:NAME`` names."""
    return MemoryPublisher(memory_plane(_name(url)), endpoint, context)


async def open_subscriber(url: str, endpoint: Endpoint, context: PlaneContext) -> MemorySubscriber:
    """Return a subscription to ``endpoint`` on the plane that ``memory:NAME`` names."""
    return MemorySubscriber(memory_plane(_name(url)), endpoint, context)


def _name(url: str) -> str:
    scheme, colon, name = url.partition(":")
    if scheme.lower() != SCHEME or not colon or not name.strip("/ "):
        raise ConfigError("FORWARDPASS_PLANE", url, "memory:NAME with a name that is not empty")
    return name.strip("/ ")
