"""Knows the four frames of the ZMQ event plane: name, publisher id, sequence, and the envelope in a wrapper.

The name is the bare topic between publisher and subscriber, and the full subject through a broker. Ids are
8 bytes big-endian and only repeat what the envelope says. The wrapper is one version byte and the envelope's
length in 4 bytes big-endian.
"""

from __future__ import annotations

from collections.abc import Sequence

from forwardpass.errors import FrameError

__all__ = ["FRAME_COUNT", "OVERHEAD_BYTES", "join", "split"]

FRAME_COUNT = 4
ID_BYTES = 8
WRAPPER_VERSION = 1
LENGTH_BYTES = 4
OVERHEAD_BYTES = 1024
"""More than wrapper and envelope (some 120 bytes) add to a payload."""

_HEADER = 1 + LENGTH_BYTES
_MAX_U64 = 2**64 - 1


def join(name: bytes, publisher_id: int, sequence: int, envelope: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the frames of one message."""
    wrapper = bytes([WRAPPER_VERSION]) + len(envelope).to_bytes(LENGTH_BYTES, "big")
    return (
        name,
        publisher_id.to_bytes(ID_BYTES, "big"),
        (sequence & _MAX_U64).to_bytes(ID_BYTES, "big"),
        wrapper + envelope,
    )


def split(parts: Sequence[bytes]) -> bytes:
    """Return the envelope in ``parts``, not decoded; bytes after its length are not part of it.

    Raises :class:`FrameError`. As in the reference, ids are not compared with the envelope's.
    """
    if len(parts) != FRAME_COUNT:
        raise FrameError(f"expected {FRAME_COUNT} frames, got {len(parts)}", len(parts))
    _, publisher_id, sequence, wrapped = parts
    if len(publisher_id) != ID_BYTES or len(sequence) != ID_BYTES:
        raise FrameError(
            f"id frames of {len(publisher_id)} and {len(sequence)} bytes; expected 8", len(parts)
        )
    if len(wrapped) < _HEADER or wrapped[0] != WRAPPER_VERSION:
        raise FrameError(
            f"a wrapper that begins with {wrapped[:1].hex() or 'nothing'}; expected 01", len(parts)
        )
    length = int.from_bytes(wrapped[1:_HEADER], "big")
    if length > len(wrapped) - _HEADER:
        raise FrameError(
            f"an envelope of {length} bytes in a frame that holds {len(wrapped) - _HEADER}", len(parts)
        )
    return wrapped[_HEADER : _HEADER + length]
