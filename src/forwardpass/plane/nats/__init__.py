"""Knows how to join the NATS plane: ``nats:`` (the servers of ``NATS_SERVER``), ``nats://…`` and ``tls://…``.

One core NATS message per payload, on the full subject of the endpoint; the body is the envelope and nothing
else: no header, no reply, no queue group. Neither side needs discovery, where the workers of a Dynamo
deployment are registered all the same.
"""

from __future__ import annotations

from forwardpass.plane.base import PlaneContext
from forwardpass.plane.discovery.cards import CardWatch
from forwardpass.plane.discovery.cards import watch_workers as watch_cards
from forwardpass.plane.nats.publisher import NatsPublisher
from forwardpass.plane.nats.settings import NatsSettings
from forwardpass.plane.nats.subscriber import NatsSubscriber
from forwardpass.wire.keys import Endpoint

__all__ = ["open_publisher", "open_subscriber", "watch_workers"]


async def open_publisher(url: str, endpoint: Endpoint, context: PlaneContext) -> NatsPublisher:
    """Return a publisher of ``endpoint``, connected.

    Raises :class:`~forwardpass.errors.ConfigError` for a URL, variable or file that cannot be used,
    :class:`~forwardpass.errors.MissingExtra` without nats-py, and
    :class:`~forwardpass.errors.PlaneUnavailable` when no server lets us in now.
    """
    publisher = NatsPublisher(NatsSettings.load(url, context.sources), endpoint, context)
    await publisher.open()
    return publisher


async def open_subscriber(url: str, endpoint: Endpoint, context: PlaneContext) -> NatsSubscriber:
    """Return a subscription to ``endpoint`` that the server knows of; raises as :func:`open_publisher`."""
    subscriber = NatsSubscriber(NatsSettings.load(url, context.sources), endpoint, context)
    await subscriber.open()
    return subscriber


async def watch_workers(url: str, endpoint: Endpoint, context: PlaneContext) -> CardWatch:
    """Watch the workers registered at ``endpoint``, in the discovery that Dynamo's variables choose.

    Raises :class:`~forwardpass.errors.ConfigError` and :class:`~forwardpass.errors.PlaneUnavailable`.
    """
    return await watch_cards(endpoint, context)
