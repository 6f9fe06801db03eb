"""Knows what a discovery backend is: records that live as long as their owner, and watches of them.

A record is a few hundred bytes of JSON under a path in a bucket. Its owner keeps it alive; when the owner
leaves or dies the record goes away by itself, and whoever watches is told. The layout (buckets, paths,
liveness) is NVIDIA Dynamo's, so that its programs and ours find each other.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from msgspec import Struct

__all__ = [
    "EVENT_CHANNELS",
    "MAX_RECORDS",
    "MAX_RECORD_BYTES",
    "MAX_WATCH_BYTES",
    "MODEL_CARDS",
    "Discovery",
    "RecordChange",
    "RecordWatch",
    "Registration",
]

EVENT_CHANNELS = "v1/event_channels"
"""Bucket of the publishers on an event plane."""
MODEL_CARDS = "v1/mdc"
"""Bucket of the workers of a deployment and what they serve."""
MAX_RECORD_BYTES = 1_048_576
"""Larger records are not read. A channel has some 250 bytes, a model card some kilobytes."""
MAX_RECORDS = 10_000
"""Records that one watch knows at most: whoever may write there could otherwise fill our memory."""
MAX_WATCH_BYTES = 64 * 1_048_576
"""Content of all the records that one watch knows; what would be more is ignored."""


class RecordChange(Struct, frozen=True):
    """A record is there, has another content, or is gone."""

    path: str
    value: bytes | None
    """Its content, not yet looked at; ``None`` once it is gone."""


class Registration(Protocol):
    """One record of ours, kept alive until ``close``."""

    async def close(self) -> None:
        """Take the record away. Idempotent; raises nothing for a backend that is gone."""
        ...


class RecordWatch(Protocol):
    """The records under one prefix; for one consumer. A slow consumer sees only the newest of each path."""

    def __aiter__(self) -> AsyncIterator[RecordChange]:
        """Yield the records that are there already, then each change. Ends after ``close``."""
        ...

    async def close(self) -> None:
        """End the watch; a waiting iteration ends too. Idempotent."""
        ...


class Discovery(Protocol):
    """A backend, opened. A backend that fails later is tried again until ``close``."""

    async def register(self, bucket: str, path: str, value: bytes) -> Registration:
        """Write a record and keep it alive.

        Raises :class:`PlaneUnavailable` when it cannot be written, also where the path is taken.
        """
        ...

    async def watch(self, bucket: str, prefix: str) -> RecordWatch:
        """Watch the records whose paths begin with ``prefix``; returns once those that exist are known.

        Raises :class:`PlaneUnavailable` when the backend cannot be reached.
        """
        ...

    async def close(self) -> None:
        """Take every record away and end every watch. Idempotent."""
        ...
