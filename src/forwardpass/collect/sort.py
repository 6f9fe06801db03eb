"""Knows what the messages of a stream are: rows of a trace, or nothing that anybody can use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from forwardpass.config.settings import CaptureMode
from forwardpass.errors import WireError
from forwardpass.plane.base import TOPIC
from forwardpass.plane.envelope import Envelope, decode_envelope
from forwardpass.plane.names import endpoint_of
from forwardpass.plane.nats.consumer import Delivery
from forwardpass.trace.record import MessageId, TraceSource
from forwardpass.trace.rows import encode_collected, read_payloads

__all__ = ["CollectedRow", "Sorted", "sort_messages"]

READ_AT_ONCE = 256
"""Payloads that are decoded in one call, which holds the interpreter's lock."""


class CollectedRow(NamedTuple):
    """A row, and the message that it was made of."""

    line: bytes
    """With its newline."""
    message_id: MessageId
    delivery: Delivery


class Sorted(NamedTuple):
    """What became of messages."""

    rows: list[CollectedRow]
    unusable: list[Delivery]
    reasons: list[str]
    """Why each of ``unusable`` is none; a stranger wrote some of the words."""


class _Opened(NamedTuple):
    delivery: Delivery
    envelope: Envelope
    source: TraceSource


def sort_messages(deliveries: Sequence[Delivery], timestamp_ms: int) -> Sorted:
    """Make rows of messages, in their order.

    A row's source has the endpoint of the subject, and the publisher's id as its producer; it was observed
    when the server stored the message, so that a message has the same time whoever collects it, and all rows
    one clock. ``timestamp_ms`` is milliseconds since the collector started.
    """
    result = Sorted([], [], [])
    opened: list[_Opened] = []
    for delivery in deliveries:
        try:
            opened.append(_open(delivery))
        except (WireError, ValueError) as error:
            _refuse(result, delivery, error)
    for first in range(0, len(opened), READ_AT_ONCE):
        _add_rows(result, opened[first : first + READ_AT_ONCE], timestamp_ms)
    return result


def _open(delivery: Delivery) -> _Opened:
    endpoint = endpoint_of(delivery.subject)
    envelope = decode_envelope(delivery.body)
    if envelope.topic != TOPIC:
        raise ValueError("the envelope has another topic")
    source = TraceSource(endpoint.namespace, endpoint.component, str(envelope.publisher_id))
    return _Opened(delivery, envelope, source)


def _add_rows(result: Sorted, opened: Sequence[_Opened], timestamp_ms: int) -> None:
    bodies = read_payloads([each.envelope.payload for each in opened])
    good = []
    for each, body in zip(opened, bodies, strict=True):
        if isinstance(body, WireError):
            _refuse(result, each.delivery, body)
        else:
            good.append((each, body))
    ids = [MessageId(each.envelope.publisher_id, each.envelope.sequence) for each, _ in good]
    lines = encode_collected(
        [(each.source, each.delivery.stored_at_unix_ms, b"") for each, _ in good],
        [body for _, body in good],
        ids,
        CaptureMode.FULL.value,
        timestamp_ms,
    )
    for line, message_id, (each, _) in zip(lines, ids, good, strict=True):
        result.rows.append(CollectedRow(line, message_id, each.delivery))


def _refuse(result: Sorted, delivery: Delivery, error: Exception) -> None:
    result.unusable.append(delivery)
    result.reasons.append(str(error))
