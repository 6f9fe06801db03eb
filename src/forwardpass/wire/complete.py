"""Knows how to complete messages of publishers that are older than two of the fields.

The earliest releases sent neither ``version`` nor ``counter_id``. They mean version 1, and their counter is
the number in the sequence frame, which equals ``counter_id`` wherever that is sent. A trace needs every
field, so what it is offered is completed; the bytes that go on to others are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from forwardpass.wire.codec import BYTES_ERRORS
from forwardpass.wire.schema import FPM_VERSION

__all__ = ["complete", "complete_many"]

_VERSION, _COUNTER = "version", "counter_id"
_VERSION_KEY, _COUNTER_KEY = b"\xa7version", b"\xaacounter_id"
_decode_map = msgspec.msgpack.Decoder(dict[str, Raw]).decode
_encode = msgspec.msgpack.Encoder().encode


def complete_many(payloads: list[bytes], sequences: Sequence[int]) -> list[bytes]:
    """Return ``payloads`` of one stream, each completed with its number of ``sequences``.

    One publisher lays all its messages out alike, so the first one is looked at, and a batch of whole
    messages is returned as it came, at the cost of two searches.
    """
    if not payloads or (_VERSION_KEY in payloads[0] and _COUNTER_KEY in payloads[0]):
        return payloads
    return [complete(payload, number) for payload, number in zip(payloads, sequences, strict=True)]


def complete(payload: bytes, sequence: int) -> bytes:
    """Return ``payload`` with ``version`` 1 and ``counter_id`` ``sequence`` where its map lacks them.

    Everything else is kept, bit for bit. What is no map (the array form is no message), or lacks neither,
    is returned as it is.
    """
    try:
        fields = _decode_map(payload)
    except BYTES_ERRORS:
        return payload
    if _VERSION in fields and _COUNTER in fields:
        return payload
    whole: dict[str, Any] = {} if _VERSION in fields else {_VERSION: FPM_VERSION}
    for name, value in fields.items():
        whole[name] = value
        if name == "dp_rank" and _COUNTER not in fields:
            whole[_COUNTER] = sequence  # where the schema has it
    whole.setdefault(_COUNTER, sequence)
    try:
        return _encode(whole)
    except BYTES_ERRORS:
        return payload
