"""Knows how changes of records wait for their consumer: the newest per path, so memory is bounded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from forwardpass.plane.discovery.base import MAX_RECORDS, MAX_WATCH_BYTES, RecordChange
from forwardpass.quiet import QuietLog

__all__ = ["RecordChanges"]

logger = logging.getLogger(__name__)


class RecordChanges:
    """What a backend knows of one prefix, and what of that the consumer has not seen yet.

    The backend calls :meth:`put`, :meth:`remove` or :meth:`replace_all`; the consumer iterates. Both on one
    event loop. ``on_close`` is awaited once, when the consumer closes the watch.
    """

    def __init__(self, on_close: Callable[[], Awaitable[None]] | None = None) -> None:
        self._known: dict[str, bytes] = {}
        self._bytes = 0
        self._pending: dict[str, bytes | None] = {}
        self._on_close = on_close
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._warnings = QuietLog(logger)

    def put(self, path: str, value: bytes) -> None:
        """Take note of a record; the same content again is no change."""
        if self._known.get(path) == value:
            return
        before = self._known.get(path)
        content_bytes = self._bytes - len(before or b"") + len(value)
        if (before is None and len(self._known) >= MAX_RECORDS) or content_bytes > MAX_WATCH_BYTES:
            self._warnings.warning(
                "too many",
                f"discovery holds more than {MAX_RECORDS} records or {MAX_WATCH_BYTES} bytes here; ignored",
            )
            return
        self._known[path] = value
        self._bytes = content_bytes
        self._note(path, value)

    def remove(self, path: str) -> None:
        """Take note that a record is gone."""
        before = self._known.pop(path, None)
        if before is not None:
            self._bytes -= len(before)
            self._note(path, None)

    def replace_all(self, records: Mapping[str, bytes]) -> None:
        """Take note of all records at once: what is not among them is gone."""
        for path in [path for path in self._known if path not in records]:
            self.remove(path)
        for path, value in records.items():
            self.put(path, value)

    async def close(self) -> None:
        """End the iteration. Idempotent."""
        if self._closed:
            return
        self.end()
        if self._on_close is not None:
            await self._on_close()

    def end(self) -> None:
        """End the iteration from the backend's side."""
        self._closed = True
        self._wake()

    def __aiter__(self) -> RecordChanges:
        return self

    async def __anext__(self) -> RecordChange:
        while not self._pending:
            if self._closed:
                raise StopAsyncIteration
            if self._waiter is not None:
                raise RuntimeError("a watch has one consumer, and it is waiting already")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        path = next(iter(self._pending))
        return RecordChange(path, self._pending.pop(path))

    def _note(self, path: str, value: bytes | None) -> None:
        self._pending.pop(path, None)  # so that a change of the same path keeps its place in time
        self._pending[path] = value
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
