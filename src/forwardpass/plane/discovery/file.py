"""Knows discovery through a folder that all programs of a machine (or of a shared file system) can reach.

The folder is looked at four times a second: the standard library cannot be told of changes. What a record
says is read again only when its time or size changed. File work runs on a thread, so that a slow disk does
not delay the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from forwardpass.clock import Clock
from forwardpass.errors import PlaneUnavailable
from forwardpass.plane.discovery.base import MAX_RECORD_BYTES, MAX_RECORDS, MAX_WATCH_BYTES
from forwardpass.plane.discovery.changes import RecordChanges
from forwardpass.plane.discovery.file_store import FileStore, Stamp
from forwardpass.quiet import QuietLog

__all__ = ["POLL_SECONDS", "REFRESH_SECONDS", "FileDiscovery"]

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.25
REFRESH_SECONDS = 3.0
"""Between two touches of a record of ours; others expect one within 3.3 s and give up after 10 s."""


class FileDiscovery:
    """Discovery below ``root``; each bucket is a folder there."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self._root = root
        self._clock = clock
        self._warnings = QuietLog(logger, clock)
        self._registrations: list[_FileRegistration] = []
        self._watches: list[RecordChanges] = []

    async def register(self, bucket: str, path: str, value: bytes) -> _FileRegistration:
        """Write a record and touch it from now on. Raises as the protocol says."""
        store = FileStore(self._root / bucket, self._clock)
        try:
            await asyncio.to_thread(store.create, path, value)
        except OSError as error:
            raise PlaneUnavailable(
                f"file discovery in {str(store.folder)!r}: {error.strerror or error}"
            ) from error
        registration = _FileRegistration(store, path, value, self._warnings)
        self._registrations.append(registration)
        return registration

    async def watch(self, bucket: str, prefix: str) -> RecordChanges:
        """Watch the records under ``prefix``; the folder need not exist yet. Raises as the protocol says."""
        poll = _Poll(FileStore(self._root / bucket, self._clock), prefix, self._warnings)
        try:
            await poll.turn()
        except OSError as error:
            raise PlaneUnavailable(
                f"file discovery in {str(poll.store.folder)!r}: {error.strerror or error}"
            ) from error
        poll.start()
        self._watches.append(poll.changes)
        return poll.changes

    async def close(self) -> None:
        """Take every record away and end every watch. Idempotent."""
        for registration in self._registrations:
            await registration.close()
        for changes in self._watches:
            await changes.close()


class _FileRegistration:
    def __init__(self, store: FileStore, path: str, value: bytes, warnings: QuietLog) -> None:
        self._store = store
        self._path = path
        self._value = value
        self._warnings = warnings
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._keep(), name="forwardpass record")

    async def close(self) -> None:
        """Delete the record's file. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        await asyncio.wait([self._task])  # not cancelled: a touch on its thread could write the file again
        with contextlib.suppress(OSError):  # then the others delete it, because nobody touches it
            await asyncio.to_thread(self._store.remove, self._path)

    async def _keep(self) -> None:
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await self._closing.wait()
                return
            try:
                await asyncio.to_thread(self._store.refresh, self._path, self._value)
            except OSError as error:
                self._warnings.warning(
                    "refresh", f"file discovery in {str(self._store.folder)!r} cannot be written: {error}"
                )


class _Poll:
    """One watched prefix of one folder."""

    def __init__(self, store: FileStore, prefix: str, warnings: QuietLog) -> None:
        self.store = store
        self.changes = RecordChanges(self._stop)
        self._prefix = prefix
        self._warnings = warnings
        self._stamps: dict[str, Stamp] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="forwardpass file discovery")

    async def turn(self) -> None:
        """Look once; raises ``OSError``."""
        for path, value in (await asyncio.to_thread(self._look)).items():
            if value is None:
                self.changes.remove(path)
            else:
                self.changes.put(path, value)

    def _look(self) -> dict[str, bytes | None]:
        found = self.store.scan(self._prefix)
        changed: dict[str, bytes | None] = {path: None for path in self._stamps if path not in found}
        read_bytes = 0
        for path, stamp in found.items():
            if self._stamps.get(path) == stamp:
                continue
            if len(changed) > 2 * MAX_RECORDS or read_bytes > MAX_WATCH_BYTES:
                break  # the rest would be ignored
            with contextlib.suppress(OSError):  # it is gone again, or is no file of ours to read
                changed[path] = value = self._read(path)
                read_bytes += len(value or b"")
        self._stamps = found
        return changed

    def _read(self, path: str) -> bytes | None:
        value = self.store.read(path)
        if value is None:
            self._warnings.warning("unreadable", f"a record of more than {MAX_RECORD_BYTES} bytes is ignored")
        return value

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.turn()
            except OSError as error:
                self._warnings.warning(
                    "look", f"file discovery in {str(self.store.folder)!r} cannot be read: {error}"
                )

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
