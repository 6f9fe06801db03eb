"""Knows how payloads become trace rows: checked by the trace's rules, many in one call, text unchanged.

The fast way decodes a batch of payloads as one array of typed messages, and proves for each that nothing
was lost by encoding it again: only a payload whose bytes come back exactly is taken from there. Any other
(a field unknown to us, another key order, an integer in a longer form than needed) goes through
:func:`~forwardpass.wire.validate.validate_payload` on its own. Both ways give the same text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from forwardpass.errors import WireError
from forwardpass.trace.record import TRACE_SCHEMA, MessageId, TraceSource
from forwardpass.wire.codec import BYTES_ERRORS
from forwardpass.wire.keys import StreamKey
from forwardpass.wire.validate import CanonicalMetrics, validate_payload

__all__ = ["Body", "Offered", "Reading", "encode_collected", "encode_rows", "read_one", "read_payloads"]

Offered = tuple[TraceSource, int, bytes]
"""A payload as it was offered: its source, Unix milliseconds when it was observed, its bytes. A plain
tuple, because one is made for every forward pass.
"""

Body = CanonicalMetrics | dict[str, Any]
"""A payload that the trace accepts, ready for JSON."""


class Reading(NamedTuple):
    """One accepted payload and whose it is."""

    key: StreamKey
    counter_id: int
    body: Body


class _Event(Struct, gc=False):
    schema: str
    source: TraceSource
    capture_mode: str
    observed_at_unix_ms: int
    fpm: Body


class _CollectedEvent(_Event, gc=False):
    message_id: MessageId


class _Row(Struct, gc=False):
    timestamp: int
    event: _Event


_decode_one = msgspec.msgpack.Decoder(CanonicalMetrics).decode
_decode_array = msgspec.msgpack.Decoder(list[CanonicalMetrics]).decode
_encode_one = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder()


def read_payloads(payloads: list[bytes]) -> list[Body | WireError]:
    """Return, for each payload in order, what the trace writes or why it refuses it.

    A bad payload costs only itself. msgspec holds the interpreter lock for the whole call, so callers keep
    ``payloads`` to a few hundred.
    """
    try:
        messages = _decode_array(_array_header(len(payloads)) + b"".join(payloads))
    except BYTES_ERRORS:
        return _read_halves(payloads)
    again = list(map(_encode_one, messages))
    if again == payloads:
        return list(messages)
    return [
        message if text == payload else _read_alone(payload)
        for message, text, payload in zip(messages, again, payloads, strict=True)
    ]


def read_one(payload: bytes) -> Reading:
    """Return one payload as the trace writes it. Raises as ``validate_payload``."""
    try:
        message = _decode_one(payload)
    except BYTES_ERRORS:
        pass
    else:
        if _encode_one(message) == payload:
            return Reading(StreamKey(message.worker_id, message.dp_rank), message.counter_id, message)
    document = validate_payload(payload)
    return Reading(StreamKey(document["worker_id"], document["dp_rank"]), document["counter_id"], document)


def encode_collected(
    offered: Iterable[Offered],
    bodies: Iterable[Body],
    message_ids: Iterable[MessageId],
    capture_mode: str,
    timestamp_ms: int,
) -> list[bytes]:
    """Return lines as :func:`encode_rows` does, one by one, with the message that each row was made of."""
    return [
        _json.encode(
            _Row(
                timestamp_ms,
                _CollectedEvent(TRACE_SCHEMA, source, capture_mode, observed, body, message_id),
            )
        )
        + b"\n"
        for (source, observed, _), body, message_id in zip(offered, bodies, message_ids, strict=True)
    ]


def encode_rows(
    offered: Iterable[Offered], bodies: Iterable[Body], capture_mode: str, timestamp_ms: int
) -> bytes:
    """Return one line per body, each with its newline: compact JSON, keys in the format's order.

    ``timestamp_ms`` is milliseconds since the writer started, the same for all of them.
    """
    rows = [
        _Row(timestamp_ms, _Event(TRACE_SCHEMA, source, capture_mode, observed, body))
        for (source, observed, _), body in zip(offered, bodies, strict=True)
    ]
    return _json.encode_lines(rows)


def _read_halves(payloads: list[bytes]) -> list[Body | WireError]:
    if len(payloads) == 1:
        return [_read_alone(payloads[0])]
    middle = len(payloads) // 2
    return read_payloads(payloads[:middle]) + read_payloads(payloads[middle:])


def _read_alone(payload: bytes) -> Body | WireError:
    try:
        return validate_payload(payload)
    except WireError as error:
        return error


def _array_header(count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big")
