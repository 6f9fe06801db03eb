"""Knows what discovery records say: JSON of publishers on an event plane, of brokers, and of workers.

The forms are NVIDIA Dynamo's. Others write into the same place, so everything read is checked: what is no
valid record is a :class:`MalformedPayload`, and a record of another kind is one too.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from forwardpass.errors import ConfigError, MalformedPayload
from forwardpass.plane.base import TOPIC
from forwardpass.plane.names import encode_segment
from forwardpass.wire.codec import BYTES_ERRORS, malformed
from forwardpass.wire.keys import Endpoint

__all__ = [
    "BROKER_COMPONENT",
    "Brokers",
    "ModelCard",
    "broker_prefix",
    "card_path",
    "card_prefix",
    "channel_prefix",
    "read_broker",
    "read_card",
    "read_channel",
    "write_card",
    "write_channel",
]

BROKER_COMPONENT = "zmq_broker"
"""Component under which a namespace's brokers are found."""
_QUOTED = re.compile(r"'.*'", re.DOTALL)
"""A stranger's text in what msgspec says, as long as it likes to be."""
_MAX_U64 = 2**64 - 1


class Brokers(Struct, frozen=True):
    """The two sides of one or several brokers of the ZMQ plane."""

    xsub: tuple[str, ...]
    """Addresses that publishers connect to."""
    xpub: tuple[str, ...]
    """Addresses that subscribers connect to."""


class ModelCard(Struct, frozen=True):
    """One card of one worker."""

    instance_id: int
    """The worker's id; unsigned 64-bit."""
    suffix: str
    """Empty for the worker's base card, the adapter's name for an adapter's."""
    card: str
    """The card's JSON text, as it stands in the record."""


class _Place(Struct, frozen=True):
    namespace: str
    component: str
    name: str


class _Scope(Struct, frozen=True):
    kind: str
    endpoint: _Place | None = None


class _Address(Struct, frozen=True):
    endpoint: str


class _Zmq(Struct, frozen=True, tag_field="kind", tag="Zmq"):
    config: _Address


class _BrokerAddresses(Struct, frozen=True):
    xsub_endpoints: tuple[str, ...]
    xpub_endpoints: tuple[str, ...]


class _ZmqBroker(Struct, frozen=True, tag_field="kind", tag="ZmqBroker"):
    config: _BrokerAddresses


class _Channel(Struct, frozen=True, tag_field="type", tag="EventChannel"):
    scope: _Scope
    topic: str
    instance_id: int
    transport: _Zmq


class _BrokerChannel(Struct, frozen=True, tag_field="type", tag="EventChannel"):
    transport: _ZmqBroker


class _Model(Struct, frozen=True, tag_field="type", tag="Model"):
    namespace: str
    component: str
    endpoint: str
    instance_id: int
    card: Raw = field(name="card_json")


_encode = msgspec.json.Encoder().encode
_channel_decoder = msgspec.json.Decoder(_Channel)
_broker_decoder = msgspec.json.Decoder(_BrokerChannel)
_model_decoder = msgspec.json.Decoder(_Model)


def channel_prefix(endpoint: Endpoint, topic: str = TOPIC) -> str:
    """Return what the paths of an endpoint's publishers begin with; see ``names.discovery_path``."""
    namespace, component, name = map(encode_segment, endpoint)
    return f"namespace/{namespace}/component/{component}/endpoint/{name}/topic/{encode_segment(topic)}/"


def broker_prefix(endpoint: Endpoint) -> str:
    """Return what the paths of a namespace's brokers begin with."""
    return f"namespace/{encode_segment(endpoint.namespace)}/component/{BROKER_COMPONENT}/"


def card_prefix(endpoint: Endpoint) -> str:
    """Return what the paths of an endpoint's model cards begin with; names stand there as they are."""
    return "/".join((*endpoint, ""))


def card_path(endpoint: Endpoint, instance_id: int, suffix: str = "") -> str:
    """Return the path of one model card."""
    return f"{card_prefix(endpoint)}{instance_id:x}" + (f"/{suffix}" if suffix else "")


def write_channel(endpoint: Endpoint, publisher_id: int, address: str) -> bytes:
    """Return the record of a publisher that is bound at ``address``.

    Raises :class:`ConfigError` for an endpoint that JSON cannot carry.
    """
    scope = _Scope("endpoint", _Place(*endpoint))
    return _encoded(_Channel(scope, TOPIC, publisher_id, _Zmq(_Address(address))), endpoint)


def read_channel(value: bytes, endpoint: Endpoint) -> str:
    """Return the address in the record of a publisher of ``endpoint``.

    Raises :class:`MalformedPayload` for anything else. The address is not looked at.
    """
    channel: _Channel = _decoded(_channel_decoder, value)
    if channel.scope != _Scope("endpoint", _Place(*endpoint)) or channel.topic != TOPIC:
        raise MalformedPayload("a record of another endpoint or topic", "$.scope")
    _id(channel.instance_id)
    return channel.transport.config.endpoint


def read_broker(value: bytes) -> Brokers:
    """Return the addresses in the record of a broker; raises :class:`MalformedPayload`."""
    channel: _BrokerChannel = _decoded(_broker_decoder, value)
    config = channel.transport.config
    return Brokers(config.xsub_endpoints, config.xpub_endpoints)


def write_card(endpoint: Endpoint, instance_id: int, card: dict[str, Any]) -> bytes:
    """Return the record of one model card; raises as :func:`write_channel`."""
    namespace, component, name = endpoint
    return _encoded(_Model(namespace, component, name, instance_id, Raw(_encode(card))), endpoint)


def read_card(path: str, value: bytes, endpoint: Endpoint) -> ModelCard:
    """Return the model card in a record; raises :class:`MalformedPayload` for another endpoint's too."""
    model: _Model = _decoded(_model_decoder, value)
    if (model.namespace, model.component, model.endpoint) != tuple(endpoint):
        raise MalformedPayload("a card of another endpoint", "$.endpoint")
    number, _, suffix = path.removeprefix(card_prefix(endpoint)).partition("/")
    if number != f"{_id(model.instance_id):x}":
        raise MalformedPayload("a card of another worker", "$.instance_id")
    try:
        text = bytes(model.card).decode()
    except UnicodeDecodeError as error:
        raise malformed(error) from error
    return ModelCard(model.instance_id, suffix, text)


def _encoded(record: Struct, endpoint: Endpoint) -> bytes:
    try:
        return _encode(record)
    except UnicodeEncodeError as error:  # half a surrogate pair, as in an argument that is not UTF-8
        raise ConfigError("endpoint", ascii(str(endpoint)), "names that are valid Unicode") from error


def _decoded(decoder: msgspec.json.Decoder[Any], value: bytes) -> Any:
    try:
        return decoder.decode(value)
    except msgspec.DecodeError as error:
        raise malformed(msgspec.DecodeError(_QUOTED.sub("…", str(error)))) from error
    except BYTES_ERRORS as error:
        raise malformed(error) from error


def _id(number: int) -> int:
    if not 0 <= number <= _MAX_U64:
        raise MalformedPayload("expected an unsigned 64-bit integer", "$.instance_id")
    return number
