"""Knows what a deployment says of its workers: who is registered, under which model card.

Kept apart from the planes because only some have it (Dynamo's discovery registers model cards), and because
whoever tracks workers needs nothing else of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from msgspec import Struct

from forwardpass.plane.base import PlaneContext
from forwardpass.wire.keys import Endpoint

__all__ = ["WorkerEvent", "WorkerSource", "WorkerWatch"]


class WorkerEvent(Struct, frozen=True):
    """A worker of one endpoint was registered, registered anew, or is gone."""

    worker_id: str
    """Decimal instance id, as in the ``worker_id`` of its payloads."""
    card: str | None
    """JSON text of its model card; ``None`` once its last card is gone."""


class WorkerWatch(Protocol):
    """The registered workers of one endpoint; for one consumer."""

    def __aiter__(self) -> AsyncIterator[WorkerEvent]:
        """Yield those that are registered already, then each change. Ends after ``close``."""
        ...

    async def close(self) -> None:
        """End the watch; a waiting iteration ends too. Idempotent."""
        ...


@runtime_checkable
class WorkerSource(Protocol):
    """What a plane also is if its deployment registers workers."""

    async def watch_workers(self, url: str, endpoint: Endpoint, context: PlaneContext) -> WorkerWatch:
        """Watch the workers registered at ``endpoint``; raises what opening the plane does."""
        ...
