"""What subscribers meet in tests: publishers on the plane of this process, and registered workers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from forwardpass.plane import memory
from forwardpass.plane.base import PlaneContext, PlanePublisher
from forwardpass.plane.workers import WorkerEvent
from forwardpass.wire.codec import encode
from forwardpass.wire.keys import Endpoint
from forwardpass.wire.schema import ForwardPassMetrics

T = TypeVar("T")
PATIENCE_SECONDS = 20.0
_names = itertools.count()


def payload(worker: str = "7", rank: int = 0, counter: int = 0) -> bytes:
    """Return a message of one rank."""
    return encode(ForwardPassMetrics(worker_id=worker, dp_rank=rank, counter_id=counter, wall_time=0.1))


def plane_url() -> str:
    """Return a plane that no other test uses."""
    return f"memory:subscriber-{next(_names)}"


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a test's coroutine, for as long as anybody may have to wait."""
    return asyncio.run(asyncio.wait_for(work(), PATIENCE_SECONDS))


async def until(true: Callable[[], bool]) -> None:
    """Wait until it is."""
    while not true():
        await asyncio.sleep(0.002)


@asynccontextmanager
async def publisher_at(url: str, endpoint: Endpoint | None = None) -> AsyncIterator[PlanePublisher]:
    """Give a publisher on the plane, for as long as it is needed."""
    made = await memory.open_publisher(url, endpoint or Endpoint(), PlaneContext())
    yield made
    await made.close()


class Workers:
    """The registered workers of a deployment: a list that a test changes, and those who watch it."""

    def __init__(self) -> None:
        self.cards: dict[str, str] = {}
        self.opened = 0
        self._queues: list[asyncio.Queue[WorkerEvent | Exception | None]] = []

    @property
    def watching(self) -> int:
        """How many watches are open."""
        return len(self._queues)

    async def open(self) -> _Watch:
        """Return a watch of what is registered, and of each change."""
        self.opened += 1
        queue: asyncio.Queue[WorkerEvent | Exception | None] = asyncio.Queue()
        for worker, card in self.cards.items():
            queue.put_nowait(WorkerEvent(worker, card))
        self._queues.append(queue)
        return _Watch(queue, self._queues)

    def change(self, worker: str, card: str | None) -> None:
        """Register a worker, or remove it."""
        if card is None:
            self.cards.pop(worker, None)
        else:
            self.cards[worker] = card
        for queue in self._queues:
            queue.put_nowait(WorkerEvent(worker, card))

    def fail(self) -> None:
        """Let every watch fail."""
        for queue in self._queues:
            queue.put_nowait(OSError("the store is gone"))


class _Watch:
    def __init__(
        self,
        queue: asyncio.Queue[WorkerEvent | Exception | None],
        queues: list[asyncio.Queue[WorkerEvent | Exception | None]],
    ) -> None:
        self._queue, self._queues = queue, queues

    async def __aiter__(self) -> AsyncIterator[WorkerEvent]:
        while (event := await self._queue.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event

    async def close(self) -> None:
        if self._queue in self._queues:
            self._queues.remove(self._queue)
        self._queue.put_nowait(None)
