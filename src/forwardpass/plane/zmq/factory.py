"""Knows how planes with the schemes ``zmq`` and ``zmq+…`` are opened.

=================================  =====================================================================
``zmq+file:[FOLDER]``              publishers bind and are found through a folder (``DYN_FILE_KV``)
``zmq+etcd:[HOST:PORT,…]``         … through etcd (``ETCD_ENDPOINTS``)
``zmq+mem:NAME``                   … inside this process
``zmq+tcp://HOST:PORT[,…]``        fixed addresses: a publisher binds the one, a subscriber reads all
``zmq+broker:xsub=…,xpub=…``       through brokers, as ``DYN_ZMQ_BROKER_URL`` lists them
``zmq:``                           whatever Dynamo's variables choose: brokers, or a discovery backend
=================================  =====================================================================

Fixed addresses carry no endpoint: whoever lists them chooses what is read.
"""

from __future__ import annotations

from forwardpass.config import plane_variables as v
from forwardpass.config.settings import Sources
from forwardpass.errors import ConfigError, MalformedPayload, PlaneUnavailable
from forwardpass.plane.base import TOPIC, PlaneContext
from forwardpass.plane.discovery.base import EVENT_CHANNELS, Discovery
from forwardpass.plane.discovery.cards import CardWatch
from forwardpass.plane.discovery.cards import watch_workers as watch_cards
from forwardpass.plane.discovery.choose import open_discovery
from forwardpass.plane.discovery.records import (
    Brokers,
    broker_prefix,
    channel_prefix,
    read_broker,
    write_channel,
)
from forwardpass.plane.names import discovery_path, draw_publisher_id, subject
from forwardpass.plane.zmq.addresses import check_broker, parse_addresses, parse_brokers
from forwardpass.plane.zmq.host import advertised_host
from forwardpass.plane.zmq.publisher import ZmqPublisher, bound_socket, connected_socket
from forwardpass.plane.zmq.subscriber import ZmqSubscriber
from forwardpass.wire.keys import Endpoint

__all__ = ["SCHEMES", "check_url", "open_publisher", "open_subscriber", "watch_workers"]

SCHEMES = ("zmq", "zmq+broker", "zmq+etcd", "zmq+file", "zmq+mem", "zmq+tcp")
_TOPIC = TOPIC.encode()


def check_url(url: str) -> None:
    """Raise :class:`ConfigError` for a URL that can never be opened; opens nothing."""
    scheme, rest = _parts(url)
    if scheme == "zmq+tcp":
        parse_addresses(rest, url)
    elif scheme == "zmq+broker":
        parse_brokers(rest.removeprefix("//"), "FORWARDPASS_PLANE")
    elif scheme != "zmq" or rest:  # for "zmq:" alone the variables choose, which are not looked at here
        _discovery(scheme, rest, url, PlaneContext(sources=Sources({})))


async def open_publisher(url: str, endpoint: Endpoint, context: PlaneContext) -> ZmqPublisher:
    """Join as a publisher of ``endpoint``. Raises as the protocol says."""
    scheme, rest = _parts(url)
    if scheme == "zmq+tcp":
        addresses = parse_addresses(rest, url)
        if len(addresses) != 1:
            raise ConfigError("FORWARDPASS_PLANE", url, "one address to bind: zmq+tcp://HOST:PORT")
        return ZmqPublisher(bound_socket(addresses[0])[0], _TOPIC, context)
    brokers = await _brokers(scheme, rest, endpoint, context)
    if brokers is not None:
        return ZmqPublisher(connected_socket(brokers.xsub), subject(endpoint).encode(), context)
    return await _registered(_discovery(scheme, rest, url, context), endpoint, context)


async def open_subscriber(url: str, endpoint: Endpoint, context: PlaneContext) -> ZmqSubscriber:
    """Join as a subscriber to ``endpoint``. Raises as the protocol says."""
    scheme, rest = _parts(url)
    if scheme == "zmq+tcp":
        return ZmqSubscriber(endpoint, context, _TOPIC, addresses=parse_addresses(rest, url))
    brokers = await _brokers(scheme, rest, endpoint, context)
    if brokers is not None:
        return ZmqSubscriber(
            endpoint,
            context,
            subject(endpoint).encode(),
            addresses=brokers.xpub,
            once=len(brokers.xpub) > 1,
        )
    discovery = _discovery(scheme, rest, url, context)
    try:
        records = await discovery.watch(EVENT_CHANNELS, channel_prefix(endpoint))
    except BaseException:
        await discovery.close()
        raise
    subscriber = ZmqSubscriber(endpoint, context, _TOPIC)
    subscriber.follow(discovery, records)
    return subscriber


async def watch_workers(url: str, endpoint: Endpoint, context: PlaneContext) -> CardWatch:
    """Watch the workers registered at ``endpoint``, in the discovery that the plane at ``url`` uses.

    Brokers and fixed addresses have none of their own: then Dynamo's variables choose. Raises
    :class:`ConfigError` and :class:`PlaneUnavailable`.
    """
    scheme, rest = _parts(url)
    backend = scheme.removeprefix("zmq").removeprefix("+")
    named = f"{backend}:{rest}" if backend in ("file", "etcd", "mem") else ""
    return await watch_cards(endpoint, context, discovery=named)


async def _registered(discovery: Discovery, endpoint: Endpoint, context: PlaneContext) -> ZmqPublisher:
    """Return a publisher that is bound and can be found, until it is closed."""
    publisher_id = draw_publisher_id()
    try:
        host = advertised_host(context.sources.value(v.EVENT_PLANE_HOST))
        socket, address = bound_socket(f"tcp://{host}:*")
        publisher = ZmqPublisher(socket, _TOPIC, context, publisher_id=publisher_id, leave=discovery.close)
    except BaseException:
        await discovery.close()
        raise
    try:
        await discovery.register(
            EVENT_CHANNELS,
            discovery_path(endpoint, publisher_id),
            write_channel(endpoint, publisher_id, address),
        )
    except BaseException:
        await publisher.close()
        raise
    return publisher


async def _brokers(scheme: str, rest: str, endpoint: Endpoint, context: PlaneContext) -> Brokers | None:
    """Return the brokers that a URL or, for ``zmq:``, a variable names; ``None`` where there are none."""
    if scheme == "zmq+broker":
        return parse_brokers(rest.removeprefix("//"), "FORWARDPASS_PLANE")
    if scheme != "zmq":
        return None
    listed = context.sources.value(v.ZMQ_BROKER_URL)
    if listed:
        return parse_brokers(listed, v.ZMQ_BROKER_URL.name)
    if context.sources.value(v.ZMQ_BROKER_ENABLED):
        return await _registered_brokers(endpoint, context)
    return None


async def _registered_brokers(endpoint: Endpoint, context: PlaneContext) -> Brokers:
    discovery = open_discovery("", context)
    try:
        records = await discovery.watch(EVENT_CHANNELS, broker_prefix(endpoint))
        await records.close()  # what is there is enough: the iteration ends after it
        xsub: dict[str, None] = {}
        xpub: dict[str, None] = {}
        async for change in records:
            try:
                brokers = read_broker(change.value or b"")
            except MalformedPayload:
                continue
            if check_broker(brokers):
                xsub.update(dict.fromkeys(brokers.xsub))
                xpub.update(dict.fromkeys(brokers.xpub))
    finally:
        await discovery.close()
    if not xsub:
        raise PlaneUnavailable(f"{v.ZMQ_BROKER_ENABLED.name} is on, and discovery has no broker")
    return Brokers(tuple(xsub), tuple(xpub))


def _discovery(scheme: str, rest: str, url: str, context: PlaneContext) -> Discovery:
    backend = scheme.removeprefix("zmq").removeprefix("+")
    if not backend and rest.strip("/ "):
        raise ConfigError("FORWARDPASS_PLANE", url, "zmq: alone, or one of " + ", ".join(SCHEMES[1:]))
    if backend == "mem" and not rest.strip("/ "):
        raise ConfigError("FORWARDPASS_PLANE", url, "zmq+mem:NAME")
    return open_discovery(f"{backend}:{rest}" if backend else "", context)


def _parts(url: str) -> tuple[str, str]:
    scheme, _, rest = url.strip().partition(":")
    return scheme.strip().lower(), rest.strip()
