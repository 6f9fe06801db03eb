"""Knows how payloads wait for an event plane that may be slow, absent or broken.

A relay puts and never waits; a task of its own opens the publisher, retries with growing waits, and
publishes in order. When the plane does not keep up the oldest payloads go, because a reader of the plane
wants the newest; every loss is counted by reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from forwardpass.counters import Counters, DropReason, StageCounts
from forwardpass.errors import ForwardPassError, PayloadTooLarge, PlaneClosed, PlaneError
from forwardpass.plane.base import PlanePublisher
from forwardpass.quiet import QuietLog
from forwardpass.relay.cadence import Backoff

__all__ = ["OUTBOX_BYTES", "OUTBOX_CAPACITY", "Outbox"]

logger = logging.getLogger(__name__)

OUTBOX_CAPACITY = 10_000
"""Payloads per stream that wait for the plane: about 5 MB."""
OUTBOX_BYTES = 67_108_864
"""Of all payloads that wait there; an impostor's may be a megabyte each."""
CLOSE_SECONDS = 1.0
"""Longest wait for a publisher to leave its plane."""
_TURN_PAYLOADS = 1024
"""As many as a relay takes in its turn: with fewer, a plane that never waits loses what comes faster."""


class Outbox:
    """The queue and task between one relay and its publisher; all on one event loop."""

    def __init__(
        self,
        open_publisher: Callable[[], Awaitable[PlanePublisher]],
        *,
        label: str,
        capacity: int = OUTBOX_CAPACITY,
        warnings: QuietLog | None = None,
    ) -> None:
        self._open_publisher = open_publisher
        self._label = label
        self._capacity = capacity
        self._warnings = warnings or QuietLog(logger)
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._counters = Counters()
        self._filled = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to open the plane and to publish."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"plane {self._label}")

    def put_many(self, payloads: Sequence[bytes]) -> None:
        """Queue ``payloads``; never waits. The oldest of all make room where there is none."""
        self._counters.offered += len(payloads)
        if self._closing.is_set():
            self._counters.refuse(DropReason.CLOSED, len(payloads))
            return
        self._queue.extend(payloads)
        self._bytes += sum(map(len, payloads))
        while len(self._queue) > self._capacity or (self._bytes > OUTBOX_BYTES and len(self._queue) > 1):
            self._bytes -= len(self._queue.popleft())
            self._counters.evicted += 1
        self._filled.set()

    def counts(self) -> StageCounts:
        """Return what was put, published, waits and was dropped."""
        return self._counters.snapshot()

    async def close(self, seconds: float) -> None:
        """Publish what waits, for at most ``seconds``, and leave the plane. Idempotent.

        A plane that cannot be opened is not waited for.
        """
        self._closing.set()
        self._filled.set()
        task, self._task = self._task, None
        if task is not None:
            await asyncio.wait([task], timeout=max(0.0, seconds))
            task.cancel()
            await asyncio.wait([task], timeout=CLOSE_SECONDS + 1.0)
        self._queue.clear()
        left = self._counters.snapshot().pending
        if left:
            self._counters.lose(DropReason.DEADLINE, left)

    async def _run(self) -> None:
        publisher: PlanePublisher | None = None
        try:
            while self._queue or not self._closing.is_set():
                publisher = publisher or await self._opened()
                if publisher is None:
                    return
                if not await self._publish_some(publisher):
                    await _leave(publisher)
                    publisher = None
                await self._next()
        finally:
            if publisher is not None:
                await _leave(publisher)

    async def _next(self) -> None:
        if self._queue or self._closing.is_set():
            await asyncio.sleep(0)  # a plane that never waits must not keep the relay waiting
            return
        self._filled.clear()
        await self._filled.wait()

    async def _opened(self) -> PlanePublisher | None:
        """Return a publisher, however long that takes; ``None`` when it is given up at the stop."""
        backoff = Backoff()
        while True:
            try:
                return await self._open_publisher()
            except Exception as error:  # noqa: BLE001  boundary: a plane that fails must not stop the relay
                self._complain("open", error)
            if self._closing.is_set():
                return None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), backoff.next())

    async def _publish_some(self, publisher: PlanePublisher) -> bool:
        """Publish a few payloads; False when the publisher is closed and a new one is needed."""
        for _ in range(min(len(self._queue), _TURN_PAYLOADS)):
            payload = self._queue.popleft()
            self._bytes -= len(payload)
            try:
                await publisher.publish(payload)
            except PayloadTooLarge as error:
                self._lose(DropReason.OVERSIZE, error)
            except PlaneClosed as error:
                self._lose(DropReason.SEND_ERROR, error)
                return False
            except PlaneError as error:
                self._lose(DropReason.SEND_ERROR, error)
            except Exception as error:  # noqa: BLE001  boundary: a plane's bug costs this payload only
                self._lose(DropReason.INTERNAL_ERROR, error)
            else:
                self._counters.delivered += 1
        return True

    def _lose(self, reason: DropReason, error: Exception) -> None:
        self._counters.lose(reason)
        self._complain(reason.value, error)

    def _complain(self, kind: str, error: Exception) -> None:
        text = f"{self._label}: not published to the event plane: {_reason(error)}"
        if isinstance(error, ForwardPassError):
            self._warnings.warning((self._label, kind), text)
        else:
            self._warnings.error((self._label, kind), text, exc_info=True)


async def _leave(publisher: PlanePublisher) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await publisher.close()
    except Exception as error:  # noqa: BLE001  boundary: leaving is best effort
        logger.warning("the event plane was not left cleanly: %s", _reason(error))


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
