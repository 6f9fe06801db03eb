"""Knows what an event plane is: the roles it plays, the messages it delivers and what it is opened with.

A plane carries payload bytes, untouched and undecoded, for one :class:`~forwardpass.wire.keys.Endpoint`
under the topic ``forward-pass-metrics``. The promises, which ``forwardpass.testing.check_plane`` checks:

* messages of one publisher arrive in the order they were published; there is no order between publishers;
* delivery is at most once: a message may be lost, never repeated;
* memory is bounded: a subscriber that does not keep up loses its oldest messages, and they are counted;
* exactly the endpoint that was asked for is delivered, whatever characters its names contain;
* a peer that goes away ends nothing: publishing goes on, and a subscriber waits for the next publisher.

A plane is one module (or object) with the two coroutines of :class:`PlaneFactory`; ``urls.py`` finds it by
the scheme of its URL.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from msgspec import Struct, field

from forwardpass.clock import Clock, SystemClock
from forwardpass.config.plane_variables import SUBSCRIBER_CAPACITY
from forwardpass.config.settings import Sources
from forwardpass.counters import StageCounts
from forwardpass.wire.keys import Endpoint

__all__ = [
    "DEFAULT_RECEIVE_CAPACITY",
    "TOPIC",
    "PlaneContext",
    "PlaneFactory",
    "PlaneMessage",
    "PlanePublisher",
    "PlaneSubscriber",
    "UrlChecker",
]

TOPIC = "forward-pass-metrics"
"""The one topic that every plane carries (never the full subject)."""

DEFAULT_RECEIVE_CAPACITY = 100_000
"""Messages that wait for a slow subscriber before the oldest go (decision D-22); about 50 MB of payloads."""


class PlaneMessage(Struct, frozen=True):
    """One message as a subscriber receives it."""

    payload: bytes
    """As published, bit for bit; not decoded and possibly no valid message."""
    endpoint: Endpoint
    publisher_id: int
    """Random per publisher object, 0 … 2**53 - 1; another id for the same worker is evidence of a restart."""
    sequence: int
    """Counts this publisher's messages on the plane from 0; unrelated to the payload's ``counter_id``."""
    published_at_ms: int
    """Unix milliseconds of the publisher's clock."""
    received_at_ms: int
    """Unix milliseconds of this process's clock, when the message entered the subscriber's queue."""

    @property
    def topic(self) -> str:
        """The topic it was published under: the only one there is."""
        return TOPIC


class PlaneContext(Struct, frozen=True):
    """What a plane is opened with besides its URL and endpoint."""

    sources: Sources = field(default_factory=Sources)
    """Where a plane reads its own variables: servers, credentials, discovery."""
    clock: Clock = field(default_factory=SystemClock)
    receive_capacity: int = DEFAULT_RECEIVE_CAPACITY
    """Messages that a subscriber holds at most."""

    @classmethod
    def load(cls, sources: Sources) -> PlaneContext:
        """Build from flags and environment; raises :class:`ConfigError`."""
        return cls(sources, receive_capacity=sources.value(SUBSCRIBER_CAPACITY))


class PlanePublisher(Protocol):
    """One publisher of one endpoint: its own id, its own sequence."""

    @property
    def publisher_id(self) -> int:
        """Return the random id that this publisher's messages carry."""
        ...

    async def publish(self, payload: bytes) -> None:
        """Send ``payload``; one call at a time.

        Returns when the plane has taken it, which does not say that anyone receives it. Raises
        :class:`PlaneClosed` after ``close``, :class:`PayloadTooLarge` for what the plane cannot carry and
        :class:`PlaneUnavailable` when it cannot be sent now; a later call may succeed, the plane reconnects
        by itself.
        """
        ...

    async def close(self) -> None:
        """Leave the plane. Idempotent; does not wait for subscribers."""
        ...


class PlaneSubscriber(Protocol):
    """One subscription to one endpoint, from all its publishers; for one consumer.

    ::

        async for message in subscriber:   # ends after close()
            ...
    """

    def __aiter__(self) -> AsyncIterator[PlaneMessage]:
        """Return the iterator over messages as they arrive; those queued at ``close`` still come."""
        ...

    def counts(self) -> StageCounts:
        """Return what arrived, was consumed, waits and was dropped.

        Messages that are no valid envelope count as ``malformed``, those the consumer was too slow for as
        ``queue_full``.
        """
        ...

    async def close(self) -> None:
        """End the subscription; a waiting iteration ends too. Idempotent."""
        ...


@runtime_checkable
class PlaneFactory(Protocol):
    """How planes of one URL scheme are opened. A module with these two coroutines is one.

    Both raise :class:`ConfigError` for a URL or variable they cannot use and :class:`PlaneUnavailable`
    when the plane cannot be reached; they return once the plane can be used.
    """

    async def open_publisher(self, url: str, endpoint: Endpoint, context: PlaneContext) -> PlanePublisher:
        """Join the plane at ``url`` as a publisher of ``endpoint``."""
        ...

    async def open_subscriber(self, url: str, endpoint: Endpoint, context: PlaneContext) -> PlaneSubscriber:
        """Join the plane at ``url`` as a subscriber to ``endpoint``."""
        ...


@runtime_checkable
class UrlChecker(Protocol):
    """A factory that can say of a URL, before anything is opened, that it can never work. Optional."""

    def check_url(self, url: str) -> None:
        """Raise :class:`ConfigError` for what the URL itself says wrong, or for a library that it needs."""
        ...
