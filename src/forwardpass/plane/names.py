"""Knows how endpoints and publishers are called on a plane: subjects, discovery paths and ids."""

from __future__ import annotations

import re
import secrets

from forwardpass.plane.base import TOPIC
from forwardpass.wire.keys import MAX_PRODUCER_ID, Endpoint

__all__ = [
    "ANY_SUBJECT",
    "MAX_SEGMENT",
    "decode_segment",
    "discovery_path",
    "draw_publisher_id",
    "encode_segment",
    "endpoint_of",
    "subject",
    "subject_prefix",
]

ANY_SUBJECT = f"namespace.*.component.*.endpoint.*.{TOPIC}"
"""What the subject of every endpoint matches, in the wildcards of NATS."""

_WORDS = ["namespace", "component", "endpoint", TOPIC]
MAX_SEGMENT = 240
"""Characters of an encoded name that a collector takes from a subject: it becomes the name of a folder
(``component=…``), which may have 255 bytes. A row that cannot be written would come again for ever.
"""
_SEGMENT = re.compile(r"(?:[A-Za-z0-9_-]|%[0-9A-F]{2})+", re.ASCII)
_ESCAPE = re.compile(r"%([0-9A-F]{2})")
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def encode_segment(text: str) -> str:
    """Return ``text`` with every UTF-8 byte but ASCII letters, digits, ``-`` and ``_`` as ``%XX``.

    A lone surrogate, which has no UTF-8 form, is encoded as the three bytes it would take.
    """
    raw = text.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)


def decode_segment(segment: str) -> str:
    """Return the text that ``segment`` was made of.

    Raises ``ValueError`` for what no text is made into, and for more than ``MAX_SEGMENT`` characters.
    """
    if len(segment) > MAX_SEGMENT or _SEGMENT.fullmatch(segment) is None:
        raise ValueError(f"{segment[:80]!r} is no encoded name")
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), segment).encode("latin-1").decode()


def endpoint_of(text: str) -> Endpoint:
    """Return the endpoint whose :func:`subject` is ``text``. Raises ``ValueError`` for any other text."""
    words = text.split(".")
    if len(words) != 7 or words[::2] != _WORDS:
        raise ValueError(f"{text[:200]!r} is no subject of an endpoint")
    return Endpoint(*map(decode_segment, words[1::2]))


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
