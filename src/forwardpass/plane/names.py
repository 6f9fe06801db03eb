"""Knows how endpoints and publishers are called on a plane: subjects, discovery paths and ids."""

from __future__ import annotations

import secrets

from forwardpass.plane.base import TOPIC
from forwardpass.wire.keys import MAX_PRODUCER_ID, Endpoint

__all__ = ["discovery_path", "draw_publisher_id", "encode_segment", "subject", "subject_prefix"]

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def encode_segment(text: str) -> str:
    """Return ``text`` with every UTF-8 byte but ASCII letters, digits, ``-`` and ``_`` as ``%XX``.

    A lone surrogate, which has no UTF-8 form, is encoded as the three bytes it would take.
    """
    raw = text.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)


def subject_prefix(endpoint: Endpoint) -> str:
    """Return ``namespace.<ns>.component.<c>.endpoint.<e>`` with encoded parts."""
    namespace, component, name = map(encode_segment, endpoint)
    return f"namespace.{namespace}.component.{component}.endpoint.{name}"


def subject(endpoint: Endpoint, topic: str = TOPIC) -> str:
    """Return the full subject of ``endpoint``; it matches no other endpoint's."""
    return f"{subject_prefix(endpoint)}.{encode_segment(topic)}"


def discovery_path(endpoint: Endpoint, publisher_id: int, topic: str = TOPIC) -> str:
    """Return the path of one publisher's discovery record; the id is lower-case hex without padding."""
    namespace, component, name = map(encode_segment, endpoint)
    return (
        f"namespace/{namespace}/component/{component}/endpoint/{name}"
        f"/topic/{encode_segment(topic)}/{publisher_id:x}"
    )


def draw_publisher_id() -> int:
    """Return a random id for one publisher object, 0 … 2**53 - 1.

    Random and not the process's or worker's: two publishers of one process must never share a discovery
    record. At most 53 bits, because JSON tools keep numbers as doubles.
    """
    return secrets.randbelow(MAX_PRODUCER_ID + 1)
