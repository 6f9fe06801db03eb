"""Knows how a subscriber's messages wait for their consumer: bounded, oldest dropped first, counted."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from forwardpass.counters import Counters, DropReason, StageCounts
from forwardpass.plane.base import PlaneMessage

__all__ = ["MAX_BYTES", "Inbox"]

MAX_BYTES = 268_435_456
"""Of all payloads that wait. 100,000 ordinary ones are 45 MB; an impostor's may be a megabyte each."""


class Inbox:
    """The queue between a plane and one consumer, of so many messages and at most ``MAX_BYTES`` of payloads.

    ``put`` never blocks and is for the consumer's event loop; :meth:`put_across` is for other threads, one at
    a time. Iteration yields until :meth:`close` was called and the queue is empty. The consumer may instead
    take what waits with :meth:`take_ready`, and wait with :meth:`arrival` or be called
    (:meth:`call_on_arrival`).
    """

    __slots__ = (
        "_bytes_kept", "_bytes_taken", "_call", "_calling", "_capacity", "_closed", "_counters", "_queue",
        "_waiter", "_waking",
    )  # fmt: skip

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._counters = Counters()
        self._queue: deque[PlaneMessage] = deque()
        self._bytes_kept = 0  # what was queued and not dropped: written by the producer
        self._bytes_taken = 0  # of that, by the consumer
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._waking = False
        self._call: Callable[[], None] | None = None
        self._calling = False

    @property
    def closed(self) -> bool:
        """Whether nothing more comes besides what is queued."""
        return self._closed

    def put(self, message: PlaneMessage) -> None:
        """Queue ``message``; the oldest makes room when the queue is full."""
        if self._store(message):
            self._wake()

    def put_across(self, message: PlaneMessage, loop: asyncio.AbstractEventLoop) -> None:
        """Do the same from another thread than that of ``loop``, where the consumer is.

        Raises :class:`RuntimeError` if that loop is closed.
        """
        if self._store(message) and not self._waking:
            self._waking = True  # one call waits at most, however long the loop is busy
            loop.call_soon_threadsafe(self._wake_consumer)

    def refuse(self, reason: DropReason) -> None:
        """Count something that arrived and is no message."""
        self._counters.offered += 1
        self._counters.refuse(reason)

    def counts(self) -> StageCounts:
        """Return what was put, taken, waits and was dropped."""
        return self._counters.snapshot()

    def close(self) -> None:
        """Accept nothing more; what is queued can still be taken. Idempotent."""
        self._closed = True
        self._wake()

    def __aiter__(self) -> Inbox:
        return self

    async def __anext__(self) -> PlaneMessage:
        while (message := self.take_ready()) is None:
            if self._closed:
                raise StopAsyncIteration
            await self.arrival()
        return message

    def take_ready(self) -> PlaneMessage | None:
        """Return the oldest message that waits, ``None`` where none does. From any thread, one at a time."""
        try:
            message = self._queue.popleft()
        except IndexError:
            return None
        self._bytes_taken += len(message.payload)
        self._counters.delivered += 1
        return message

    async def arrival(self) -> None:
        """Wait until a message waits or the inbox is closed; takes nothing, so it can be given up."""
        if self._queue or self._closed:
            return
        if self._waiter is not None:
            raise RuntimeError("a plane subscriber has one consumer, and it is waiting already")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def call_on_arrival(self, call: Callable[[], None]) -> None:
        """Have the event loop call ``call`` soon after messages arrived (once for many), and at the close."""
        self._call = call

    def _store(self, message: PlaneMessage) -> bool:
        self._counters.offered += 1
        if self._closed:
            self._counters.refuse(DropReason.CLOSED)
            return False
        self._queue.append(message)
        self._bytes_kept += len(message.payload)
        if len(self._queue) > self._capacity or self._bytes_kept - self._bytes_taken > MAX_BYTES:
            self._make_room()
        return True

    def _make_room(self) -> None:
        """Drop the oldest, and never the newest: a consumer elsewhere may take them at the same time."""
        while len(self._queue) > self._capacity or (
            len(self._queue) > 1 and self._bytes_kept - self._bytes_taken > MAX_BYTES
        ):
            try:
                dropped = self._queue.popleft()
            except IndexError:
                return
            self._bytes_kept -= len(dropped.payload)
            self._counters.evicted += 1

    def _wake_consumer(self) -> None:
        self._waking = False
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._call is not None and not self._calling:
            self._calling = True
            asyncio.get_running_loop().call_soon(self._call_consumer, self._call)

    def _call_consumer(self, call: Callable[[], None]) -> None:
        self._calling = False
        call()
