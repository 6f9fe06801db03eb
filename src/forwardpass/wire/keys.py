"""Knows who a stream belongs to: its key, its producer id and how that becomes part of a file name."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["MAX_PRODUCER_ID", "Endpoint", "StreamKey", "sanitize_producer_id"]

MAX_PRODUCER_ID = 2**53 - 1
"""Largest id we draw: it survives JSON tools that keep numbers as doubles."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class StreamKey(NamedTuple):
    """One stream of forward passes."""

    worker_id: str
    dp_rank: int


class Endpoint(NamedTuple):
    """The Dynamo identity of a stream, written ``namespace.component.name``."""

    namespace: str = "dynamo"
    component: str = "backend"
    name: str = "generate"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Return the endpoint written as three dot-separated parts; raises ``ValueError``."""
        parts = text.split(".")
        if len(parts) != 3 or not all(parts):
            raise ValueError(f"{text!r} is not namespace.component.endpoint")
        return cls(*parts)

    def __str__(self) -> str:
        return ".".join(self)


def sanitize_producer_id(producer_id: str) -> str:
    """Return ``producer_id`` as part of a file name: ``[A-Za-z0-9_-]``, others ``_``; never empty."""
    return _UNSAFE.sub("_", producer_id) or "unknown"
