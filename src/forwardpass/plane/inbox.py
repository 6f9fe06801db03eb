"""Knows how a subscriber's messages wait for their consumer: bounded, oldest dropped first, counted."""

from __future__ import annotations

import asyncio
from collections import deque

from forwardpass.counters import Counters, DropReason, StageCounts
from forwardpass.plane.base import PlaneMessage

__all__ = ["Inbox"]


class Inbox:
    """The queue between a plane and one consumer, both on the same event loop.

    ``put`` never blocks. Iteration yields until :meth:`close` was called and the queue is empty.
    """

    __slots__ = ("_capacity", "_closed", "_counters", "_queue", "_waiter")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._counters = Counters()
        self._queue: deque[PlaneMessage] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def put(self, message: PlaneMessage) -> None:
        """Queue ``message``; the oldest makes room when the queue is full."""
        self._counters.offered += 1
        if self._closed:
            self._counters.refuse(DropReason.CLOSED)
            return
        if len(self._queue) >= self._capacity:
            self._queue.popleft()
            self._counters.evicted += 1
        self._queue.append(message)
        self._wake()

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
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            if self._waiter is not None:
                raise RuntimeError("a plane subscriber has one consumer, and it is waiting already")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._counters.delivered += 1
        return self._queue.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
