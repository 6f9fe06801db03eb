"""Knows the three ZMQ frames of the raw stream: empty topic, 8-byte big-endian sequence, payload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from forwardpass.errors import FrameError

__all__ = ["FRAME_COUNT", "SEQUENCE_BYTES", "Frames", "join", "split"]

FRAME_COUNT = 3
SEQUENCE_BYTES = 8


class Frames(NamedTuple):
    """One message of the raw stream, taken apart."""

    topic: bytes
    seq: int
    """The publisher's sequence, unsigned 64-bit; equals the payload's ``counter_id``."""
    payload: bytes
    """MessagePack of one :class:`~forwardpass.wire.schema.ForwardPassMetrics`, not yet decoded."""


def join(seq: int, payload: bytes, topic: bytes = b"") -> tuple[bytes, bytes, bytes]:
    """Return the frames to send for ``payload`` with sequence ``seq`` (0 … 2**64 - 1)."""
    return topic, seq.to_bytes(SEQUENCE_BYTES, "big"), payload


def split(parts: Sequence[bytes]) -> Frames:
    """Return the message in ``parts``. Raises :class:`FrameError`; the payload is not looked at."""
    if len(parts) != FRAME_COUNT:
        raise FrameError(f"expected {FRAME_COUNT} frames, got {len(parts)}", len(parts))
    topic, seq, payload = parts
    if len(seq) != SEQUENCE_BYTES:
        raise FrameError(f"a sequence frame of {len(seq)} bytes; expected {SEQUENCE_BYTES}", len(parts))
    return Frames(topic, int.from_bytes(seq, "big"), payload)
