"""Knows the envelope that a payload travels in on every plane with a network: one MessagePack map.

Keys, in the order they are written: ``publisher_id``, ``sequence``, ``published_at`` (Unix milliseconds),
``topic``, ``payload`` (binary). Readers also take any order, unknown keys, the array form, a payload
that is typed as a string, and trailing bytes, because the reference's readers do.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct, field

from forwardpass.errors import MalformedPayload
from forwardpass.plane.base import TOPIC
from forwardpass.wire.codec import BYTES_ERRORS, decode_first, malformed

__all__ = ["Envelope", "decode_envelope", "encode_envelope"]

UInt64 = Annotated[int, Meta(ge=0)]
"""MessagePack has no integer above 2**64 - 1."""


class Envelope(Struct, frozen=True, gc=False):
    """A payload and where it came from."""

    publisher_id: int
    """Random per publisher, 0 … 2**53 - 1 (readers take any unsigned 64-bit integer)."""
    sequence: int
    """The publisher's message count from 0."""
    published_at_ms: int = field(name="published_at")
    """Unix milliseconds."""
    topic: str
    payload: bytes


class _Incoming(Struct, gc=False):
    publisher_id: UInt64
    sequence: UInt64
    published_at: UInt64
    topic: str
    payload: Raw


class _IncomingArray(_Incoming, array_like=True, gc=False):
    pass


_encoder = msgspec.msgpack.Encoder()
_map_decoder = msgspec.msgpack.Decoder(_Incoming)
_array_decoder = msgspec.msgpack.Decoder(_IncomingArray)

# first byte -> bytes of the length that follows it (str 8/16/32 and bin 8/16/32)
_LENGTH_BYTES = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC4: 1, 0xC5: 2, 0xC6: 4}


def encode_envelope(publisher_id: int, sequence: int, published_at_ms: int, payload: bytes) -> bytes:
    """Return the envelope of one message of the topic ``forward-pass-metrics``."""
    return _encoder.encode(Envelope(publisher_id, sequence, published_at_ms, TOPIC, payload))


def decode_envelope(data: bytes) -> Envelope:
    """Return the envelope in ``data``, whatever its topic.

    Raises :class:`MalformedPayload` for a missing key, a negative or non-integer number, a payload that
    is neither binary nor a string, and bytes that are no envelope at all.
    """
    try:
        incoming = _decode_first(data)
    except BYTES_ERRORS as error:
        raise malformed(error) from error
    return Envelope(
        incoming.publisher_id,
        incoming.sequence,
        incoming.published_at,
        incoming.topic,
        _content(bytes(incoming.payload)),
    )


def _decode_first(data: bytes) -> _Incoming:
    first = data[0] if data else 0
    is_array = first & 0xF0 == 0x90 or first in (0xDC, 0xDD)
    return decode_first(_array_decoder, data) if is_array else decode_first(_map_decoder, data)


def _content(raw: bytes) -> bytes:
    """Return the bytes of a binary or string value; a string need not be UTF-8."""
    first = raw[0]
    if first & 0xE0 == 0xA0:  # a string of up to 31 bytes
        return raw[1:]
    length_bytes = _LENGTH_BYTES.get(first)
    if length_bytes is None:
        raise MalformedPayload("expected binary", "$.payload")
    return raw[1 + length_bytes :]
